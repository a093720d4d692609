# Image for training, evaluating and exporting, with or without GPUs. In the checkout:
#   docker build --file docker/train.Dockerfile --tag bert-keras .
#   docker run --rm --gpus all --volume "$PWD:/work" bert-keras pretrain --help
# Without GPUs, 3 GB smaller: --build-arg TENSORFLOW=tensorflow
FROM python:3.11-slim-bookworm
# With CUDA's libraries; the version is that of constraints.txt.
ARG TENSORFLOW=tensorflow[and-cuda]
COPY setup.cfg pyproject.toml constraints.txt README.md LICENSE /src/
COPY bert_keras /src/bert_keras
COPY pipelines /src/pipelines
COPY tpu /src/tpu
RUN pip install --no-cache-dir --constraint /src/constraints.txt "${TENSORFLOW}" '/src[train]'
WORKDIR /work
ENTRYPOINT ["bert-keras"]
