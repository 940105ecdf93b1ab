# Trains and draws in a container, as a user without rights. All packages are checked against requirements-hashed.txt.
#
#   docker build -t diffusers_dp .
#   docker run --rm --network none -v "$PWD/scans:/scans:ro" -v "$PWD/runs:/work/runs" diffusers_dp \
#       train feta_pro --config folder_cpu --train_data_dir /scans --class_names benign,malignant
#
# The digest is that of the official image of September 2026, for x86-64 and ARM. For a newer one, run
# `docker buildx imagetools inspect python:3.12-slim`, and build with
# --build-arg BASE=python:3.12-slim@sha256:...
ARG BASE=python:3.12.14-slim-trixie@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea
FROM ${BASE}
COPY requirements-hashed.txt /source/
# On x86-64 this is torch with CUDA, which computes on CPUs too. The smaller torch for CPUs is on another index, with
# other hashes.
RUN pip install --no-cache-dir --require-hashes -r /source/requirements-hashed.txt
COPY . /source
RUN pip install --no-cache-dir --no-deps --no-build-isolation /source && rm -rf /source
RUN useradd --create-home dp && mkdir -p /work && chown dp /work
USER dp
WORKDIR /work
ENV HF_HUB_DISABLE_TELEMETRY=1
ENTRYPOINT ["diffusers-dp"]
CMD ["--help"]
