# Images for Beam's workers; they need no TensorFlow. First make the wheel in dist/:
#   pip wheel --no-deps --wheel-dir dist .
#   docker build --file docker/beam.Dockerfile --target workers --tag IMAGE .
# Python and Beam must be of the same versions here and where the job is submitted from.
FROM apache/beam_python3.11_sdk:2.77.0 AS workers
COPY dist/*.whl /tmp/
RUN pip install --no-cache-dir /tmp/*.whl

# A flex template's image, which also starts the job: --target template
# Google publishes it without versions.
# hadolint ignore=DL3007
FROM gcr.io/dataflow-templates-base/python311-template-launcher-base:latest AS launcher

FROM workers AS template
COPY --from=launcher /opt/google/dataflow/python_template_launcher /opt/google/dataflow/python_template_launcher
RUN pip install --no-cache-dir 'apache-beam[gcp]==2.77.0'
ENV FLEX_TEMPLATE_PYTHON_PY_FILE=/usr/local/lib/python3.11/site-packages/bert_keras/pipelines/dataflow/flex_template.py
