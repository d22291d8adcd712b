"""Loads SGLang's own disaggregation/common/conn.py, unchanged, without torch and without the rest of SGLang.

SGLANG names the folder into which the wheel was unpacked (make sglang). Real: conn.py, base/conn.py, common/bootstrap.py,
pp_consensus_store.py, environ.py, utils/network.py and the plugin loader, with pyzmq, numpy, requests, aiohttp, msgspec
and psutil. Replaced by a few lines here: torch, the settings of a running server, tracing, and helpers of the memory pool.
"""

import importlib
import importlib.machinery
import logging
import os
import pathlib
import sys
import types

FOLDER = pathlib.Path(os.environ["SGLANG"])
PACKAGES = ["", ".srt", ".srt.disaggregation", ".srt.disaggregation.base", ".srt.disaggregation.common", ".srt.utils"]
PACKAGES += [".srt.mem_cache", ".srt.observability"]


class DisaggregationMode:
    PREFILL, DECODE = "prefill", "decode"


def _module(name, **names):
    made = types.ModuleType(name)
    vars(made).update(names)
    made.__spec__ = importlib.machinery.ModuleSpec(name, None)
    sys.modules[name] = made
    return made


def _settings(**values):
    return lambda: types.SimpleNamespace(**values)


def load(bootstrap_port=0):
    """The module sglang.srt.disaggregation.common.conn."""
    for suffix in PACKAGES:
        name = "sglang" + suffix
        _module(name).__path__ = [str(FOLDER / name.replace(".", "/"))]
    _module("torch").distributed = _module("torch.distributed", is_available=lambda: False)
    _module(
        "sglang.srt.disaggregation.utils",
        DisaggregationMode=DisaggregationMode,
        filter_kv_indices_for_cp_rank=None,
        filter_kv_indices_for_shard_rank=None,
        get_dsv41_spec_layout=lambda kv_args: None,
    )
    _module("sglang.srt.mem_cache.page_interleave", get_kv_shard_group=None)
    _module("sglang.srt.observability.trace", TraceNullContext=object, TraceReqContext=None)
    _module("sglang.srt.server_args", ServerArgs=object)
    _module("sglang.srt.utils.common", ceil_align=None)
    parallel = dict.fromkeys(["attn_tp_rank", "attn_cp_rank", "attn_dcp_rank", "attn_dp_rank", "pp_rank"], 0)
    parallel |= dict.fromkeys(["attn_tp_size", "attn_cp_size", "attn_dcp_size", "attn_dp_size", "dp_size", "pp_size"], 1)
    parallel |= {"dist_init_addr": None, "pp_group": None, "nnodes": 1, "num_dp_ranks": 1}
    parallel |= dict.fromkeys(
        ["enable_kv_cache_sharding", "enable_dsa_cache_layer_split", "enable_cp_tp_group_sharing"], False
    )
    _module(
        "sglang.srt.runtime_context",
        get_device=None,
        get_disagg=_settings(
            disaggregation_bootstrap_port=bootstrap_port, disaggregation_decode_allocation_policy="early"
        ),
        get_observability=_settings(enable_trace=False),
        get_parallel=_settings(**parallel),
        get_schedule=None,
        get_serving=_settings(host="127.0.0.1", port=1),
        linear_attn_tp_size=lambda: 1,
        max_prefill_buffer_tokens=None,
    )
    logging.Logger.warning_once = logging.Logger.warning
    os.environ.setdefault("SGLANG_HOST_IP", "127.0.0.1")
    os.environ.setdefault("HOST_IP", "127.0.0.1")
    return importlib.import_module("sglang.srt.disaggregation.common.conn")


def kv_args():
    """What a KV manager reads of its memory pool."""
    return types.SimpleNamespace(
        kv_cache_dtype_str="auto", kv_layout=None, kv_item_lens=[1], state_item_lens=[], state_types=[], system_dp_rank=0,
        pp_rank=0, engine_rank=0, page_size=1, aux_data_ptrs=[], rust_http_port=None,
    )
