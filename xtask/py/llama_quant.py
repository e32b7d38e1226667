"""llama.cpp's quantiser through ctypes: `Llama(folder)`, where `folder` has `libllama` and its companions.

The npm package `@node-llama-cpp/linux-x64` 3.22.1 has them (llama.cpp v0.5.0, CPU): `npm pack
@node-llama-cpp/linux-x64@3.22.1`, unpack, `folder` is `package/bins/linux-x64`. (The PyPI wheel of `xllamacpp` does not
export the quantiser, and that of `llama-cpp-python` must be built.) Structures are those of that version's
`include/llama.h` and `src/llama-ext.h`.
"""

import ctypes
from ctypes import POINTER, Structure, byref, c_bool, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from pathlib import Path

SOURCE = "llama.cpp v0.5.0 (npm @node-llama-cpp/linux-x64 3.22.1)"

# glim's --type, llama_ftype.
MIXES = {
    "f32": 0,
    "f16": 1,
    "bf16": 32,
    "q8_0": 7,
    "q6_k": 18,
    "q5_k_m": 17,
    "q5_k_s": 16,
    "q5_1": 9,
    "q5_0": 8,
    "q4_1": 3,
    "q4_k_m": 15,
    "q4_k_s": 14,
    "q4_0": 2,
    "iq4_nl": 25,
    "iq4_xs": 30,
    "mxfp4": 38,
    "q3_k_l": 13,
    "q3_k_m": 12,
    "q3_k_s": 11,
    "q2_k": 10,
    "q2_k_s": 21,
}


class Imatrix(Structure):
    _fields_ = [("name", c_char_p), ("data", POINTER(c_float)), ("size", c_size_t)]


class Override(Structure):
    _fields_ = [("pattern", c_char_p), ("type", c_int)]


class Params(Structure):
    _fields_ = [
        ("nthread", c_int32),
        ("ftype", c_int),
        ("output_tensor_type", c_int),
        ("token_embedding_type", c_int),
        ("allow_requantize", c_bool),
        ("quantize_output_tensor", c_bool),
        ("only_copy", c_bool),
        ("pure", c_bool),
        ("keep_split", c_bool),
        ("dry_run", c_bool),
        ("imatrix", POINTER(Imatrix)),
        ("kv_overrides", c_void_p),
        ("tt_overrides", POINTER(Override)),
        ("prune_layers", c_void_p),
        ("max_buf_size", c_size_t),
    ]


class Desc(Structure):
    _fields_ = [("architecture", c_char_p)] + [
        (name, c_uint32)
        for name in "n_embd n_ff n_layer n_head n_head_kv n_expert n_embd_head_k n_embd_head_v".split()
    ]


class InitParams(Structure):
    _fields_ = [("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool)]


LOG = ctypes.CFUNCTYPE(None, c_int, c_char_p, c_void_p)


class Llama:
    def __init__(self, folder):
        def load(pattern):
            [path] = Path(folder).resolve().glob(pattern)
            return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)

        self.ggml = load("libggml-base.so")
        load("libggml.v*.so")
        self.llama = load("libllama.v*.so")
        self.lines = []
        self.log = LOG(lambda _level, text, _data: self.lines.append(text.decode(errors="replace")))
        self.llama.llama_log_set(self.log, None)
        self.llama.llama_model_quantize_default_params.restype = Params
        self.ggml.ggml_init.restype = c_void_p
        self.ggml.ggml_init.argtypes = [InitParams]
        self.ggml.ggml_new_tensor.restype = c_void_p
        self.ggml.ggml_new_tensor.argtypes = [c_void_p, c_int, c_int, POINTER(c_int64)]
        self.ggml.ggml_set_name.restype = c_void_p
        self.ggml.ggml_set_name.argtypes = [c_void_p, c_char_p]
        self.ggml.ggml_free.argtypes = [c_void_p]
        self.ggml.ggml_type_name.restype = c_char_p

    def default_params(self, mix):
        params = self.llama.llama_model_quantize_default_params()
        params.ftype = MIXES[mix]
        return params

    def types(self, facts, tensors, mix, source_type):
        """The type of each of `tensors` (name, dims fastest first), by `llama_quant_compute_types`."""
        function = lambda name, result, *arguments: self._cpp(name, result, arguments)
        new_model = function("_Z31llama_quant_model_from_metadataPK22llama_quant_model_desc", c_void_p, POINTER(Desc))
        new_state = function(
            "_Z16llama_quant_initPK11llama_modelPK27llama_model_quantize_params", c_void_p, c_void_p, POINTER(Params)
        )
        free_state = function("_Z16llama_quant_freeP19quantize_state_impl", None, c_void_p)
        compute = function(
            "_Z25llama_quant_compute_typesP19quantize_state_impl11llama_ftypePP11ggml_tensorP9ggml_typem",
            None,
            c_void_p,
            c_int,
            POINTER(c_void_p),
            POINTER(c_int),
            c_size_t,
        )
        desc = Desc(facts["arch"].encode(), 64, 64, facts["layers"], facts["heads"], facts["kv_heads"], facts["experts"], 64, 64)
        model = new_model(byref(desc))
        params = self.default_params(mix)
        state = new_state(model, byref(params))
        context = self.ggml.ggml_init(InitParams(4096 * (len(tensors) + 16), None, True))
        made = (c_void_p * len(tensors))()
        for i, (name, dims) in enumerate(tensors):
            ne = (c_int64 * len(dims))(*dims)
            made[i] = self.ggml.ggml_new_tensor(context, source_type, len(dims), ne)
            self.ggml.ggml_set_name(made[i], name.encode())
        types = (c_int * len(tensors))()
        compute(state, MIXES[mix], made, types, len(tensors))
        free_state(state)
        self.ggml.ggml_free(context)
        self.llama.llama_model_free(c_void_p(model))
        return [self.ggml.ggml_type_name(ty).decode() for ty in types]

    def _cpp(self, name, result, arguments):
        function = getattr(self.llama, name)
        function.restype, function.argtypes = result, list(arguments)
        return function

    def quantize(self, source, target, mix, *, imatrix=None, overrides=(), **changes):
        """`llama_model_quantize`; `imatrix` is name -> flat f32 array, `changes` are fields of the parameters."""
        params = self.default_params(mix)
        params.nthread = 2
        for name, value in changes.items():
            setattr(params, name, value)
        keep = []
        if imatrix is not None:
            entries = (Imatrix * (len(imatrix) + 1))()
            for i, (name, values) in enumerate(imatrix.items()):
                data = values.ctypes.data_as(POINTER(c_float))
                keep.append(values)
                entries[i] = Imatrix(name.encode(), data, values.size)
            params.imatrix = entries
        if overrides:
            table = (Override * (len(overrides) + 1))()
            for i, (pattern, ty) in enumerate(overrides):
                table[i] = Override(pattern.encode(), ty)
            params.tt_overrides = table
        self.lines.clear()
        failed = self.llama.llama_model_quantize(str(source).encode(), str(target).encode(), byref(params))
        if failed:
            raise RuntimeError("".join(self.lines[-5:]))
