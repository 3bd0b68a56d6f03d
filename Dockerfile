# CPU image: docker build -t prompt2policy .
#   docker run --rm -it -v p2p-runs:/work/runs prompt2policy run "run forward fast"
#   docker run --rm -it -p 8420:8420 -v p2p-runs:/work/runs prompt2policy serve --host 0.0.0.0
# A folder of yours instead of the volume p2p-runs has to be writable for uid 1100.
# The sandbox needs a kernel with Landlock (5.13 or newer), and a profile that lets a container use
# it: `docker run --rm prompt2policy doctor` says whether that holds.
FROM python:3.12-slim-bookworm

# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends libegl1 libegl-mesa0 libgl1-mesa-dri openssh-client rsync \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/prompt2policy
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
# torch's CPU build: the default one brings gigabytes of CUDA libraries.
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu torch==2.13.0 \
 && pip install --no-cache-dir -c constraints.txt '.[selfplay]'

RUN useradd --create-home --uid 1100 p2p && mkdir -p /work/runs && chown -R p2p /work
USER 1100
WORKDIR /work
ENV OMP_NUM_THREADS=1 MUJOCO_GL=egl
EXPOSE 8420
ENTRYPOINT ["p2p"]
CMD ["run", "run forward fast", "--env", "HalfCheetah-v5", "--model", "builtin"]
