# The image of Beam's workers, who need no TensorFlow. First make the wheel in dist/:
#   pip wheel --no-deps --wheel-dir dist .
#   docker build --file docker/beam.Dockerfile --tag IMAGE .
# Python and Beam must be of the same versions here and where the job is submitted from.
FROM apache/beam_python3.11_sdk:2.77.0
COPY dist/*.whl /tmp/
RUN pip install --no-cache-dir /tmp/*.whl
