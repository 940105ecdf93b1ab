# Trains and draws in a container, as a user without rights.
#
#   docker build -t diffusers_dp .                                                       # CPU
#   docker build -t diffusers_dp --build-arg TORCH_INDEX=https://pypi.org/simple .      # CUDA
#   docker run --rm --network none -v "$PWD/scans:/scans:ro" -v "$PWD/runs:/work/runs" diffusers_dp \
#       train feta_pro --config folder_cpu --train_data_dir /scans --class_names benign,malignant
ARG PYTHON=3.12
FROM python:${PYTHON}-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN apt-get update && apt-get install -y --no-install-recommends openssh-client && rm -rf /var/lib/apt/lists/*
COPY constraints.txt /source/
RUN pip install --no-cache-dir torch==2.13.0 --index-url "$TORCH_INDEX" --extra-index-url https://pypi.org/simple -c /source/constraints.txt
COPY . /source
RUN pip install --no-cache-dir "/source[app,lora]" -c /source/constraints.txt && rm -rf /source
RUN useradd --create-home dp && mkdir -p /work && chown dp /work
USER dp
WORKDIR /work
ENV HF_HUB_DISABLE_TELEMETRY=1
ENTRYPOINT ["diffusers-dp"]
CMD ["--help"]
