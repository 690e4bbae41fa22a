"""What the classes of a model declare, by reflection: keys with defaults, other classes, and components of tokenizers."""

import ast
import contextlib
import enum
import functools
import inspect
import json
import sys
import textwrap
import typing
from pathlib import Path

import sentence_transformers.sentence_transformer.modules as modules
import tokenizers
import transformers
from kinds import JINA_V5
from transformers import (
    CONFIG_MAPPING, AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase, configuration_utils, modeling_rope_utils,
)

# Families in code of their own, with the config of another.
LIKE = {"bidirectional_pplx_qwen3": "qwen3"}
# Code of all families that reads their configs.
SHARED = ("transformers.masking_utils", "transformers.modeling_layers")
OWN = ("transformers", "sentence_transformers", "gliclass", "gliner", "gliner2")


def classes(kind):
    return [base for base in inspect.getmro(kind) if base.__module__.split(".")[0] in OWN]


def plain(value):
    """A value for JSON; nothing for those that files cannot have."""
    if isinstance(value, enum.Enum):
        value = value.value
    try:
        json.dumps(value)
        return value
    except (TypeError, ValueError):
        return None


def parameters(kind):
    """The parameters of the constructors of a class and its bases, with their defaults."""
    found = {}
    for base in reversed(classes(kind)):
        try:
            signature = inspect.signature(base.__init__)
        except (TypeError, ValueError):
            continue
        for name, parameter in signature.parameters.items():
            is_named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
            if is_named and name not in ("self", "args", "kwargs"):
                found[name] = None if parameter.default is parameter.empty else plain(parameter.default)
    return found


def names_in(source, objects):
    """The names that code reads: `kwargs.pop("NAME")`, `config["NAME"]`, `getattr(config, "NAME")`, `config.NAME`."""
    found = set()
    for node in ast.walk(ast.parse(textwrap.dedent(source))):
        candidates = []
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Attribute) and function.attr in ("pop", "get", "setdefault"):
                candidates = node.args[:1]
            elif isinstance(function, ast.Name) and function.id in ("getattr", "hasattr"):
                candidates = node.args[1:2]
        elif isinstance(node, ast.Subscript):
            candidates = [node.slice]
        elif isinstance(node, ast.Attribute):
            owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            found.update([node.attr] if owner in objects else [])
        texts = [node.value for node in candidates if isinstance(node, ast.Constant)]
        found.update(text for text in texts if isinstance(text, str) and text.isidentifier())
    return found


@functools.cache
def read_by(kind, objects):
    try:
        return names_in(inspect.getsource(kind), objects)
    except (OSError, TypeError, SyntaxError):
        return frozenset()


def read_names(kinds, objects=()):
    return frozenset().union(*(read_by(kind, objects) for kind in kinds))


@functools.cache
def keys(kind, objects=(), others=()):
    """All keys of a class with the defaults that are known."""
    found = {name: None for name in read_names([*classes(kind), *others], objects)}
    found.update(parameters(kind))
    return {name: value for name, value in found.items() if not name.startswith("__")}


def config_class(model_type):
    """A family's config class; nothing if no library here has the family."""
    model_type = LIKE.get(model_type, model_type)
    with contextlib.suppress(ImportError):
        if model_type == "GLiClass":
            from gliclass import GLiClassModelConfig

            return GLiClassModelConfig
        if model_type == "extractor":
            from gliner2.configuration import ExtractorConfig

            return ExtractorConfig
    return CONFIG_MAPPING[model_type] if model_type in CONFIG_MAPPING else None


@functools.cache
def gliner_keys():
    """The keys of GLiNER's settings, for all of its kinds; nothing without the package."""
    with contextlib.suppress(ImportError):
        from gliner import config

        kinds = [kind for kind in vars(config).values() if inspect.isclass(kind) and kind.__module__ == config.__name__]
        return {name: value for kind in kinds for name, value in keys(kind).items()}
    return {}


@functools.cache
def config_keys(model_type):
    kind = config_class(model_type)
    prefixes = (kind.__module__.rpartition(".")[0] + ".modeling", *SHARED)
    code = [module for name, module in sys.modules.items() if name.startswith(prefixes)]
    found = keys(kind, ("config",), tuple(code))
    found.update({name: None for name in kind.attribute_map})
    found.update({name: plain(value) for name, value in kind().to_dict().items()})
    return found


def inner_keys(model_type):
    """The keys of the configs inside of a family's config, by name; without those whose class depends on the file."""
    kinds = getattr(config_class(model_type), "sub_configs", None) or {}
    return {name: config_keys(kind.model_type) for name, kind in kinds.items() if config_class(getattr(kind, "model_type", None)) is kind}


@functools.cache
def rope():
    """Keys of rotary positions with a value of their type, which `transformers` declares since version 5; and their types."""
    values = {float: 4.0, int: 24, bool: True, str: "default", list[float]: [1.0, 2.0] * 4, list[int]: [4, 2, 2]}
    declared = typing.get_type_hints(getattr(modeling_rope_utils, "RopeParameters", object))
    keys = {name: values[typing.get_args(kind)[0]] for name, kind in declared.items()}
    types = ["default", *modeling_rope_utils.ROPE_INIT_FUNCTIONS]
    return {"keys": {**keys, "type": "default"} if keys else {}, "types": types}


def architectures(model_type):
    """The models of a family: they share the beginning of a config class's name."""
    prefix = config_class(model_type).__name__.removesuffix("Config")
    found = [name for name in dir(transformers) if name.startswith(f"{prefix}For") or name == f"{prefix}Model"]
    return found or [f"{prefix}Model", "BertModel"]


@functools.cache
def tokenizer_classes():
    names = [name for name in dir(transformers) if name.endswith(("Tokenizer", "TokenizerFast"))]
    return [*names, "PreTrainedTokenizerFast", "TokenizersBackend"]


@functools.cache
def module_classes():
    """Module classes by their whole paths, with their keys."""
    found = {}
    for name in modules.__all__:
        kind = getattr(modules, name)
        found[f"sentence_transformers.models.{name}"] = keys(kind)
        found[f"{kind.__module__}.{name}"] = keys(kind)
    return found


@functools.cache
def components():
    """Parts of `tokenizer.json` that can be made without parameters, by kind."""
    places = {
        "normalizer": tokenizers.normalizers, "pre_tokenizer": tokenizers.pre_tokenizers,
        "post_processor": tokenizers.processors, "decoder": tokenizers.decoders,
    }
    found = {}
    for place, package in places.items():
        for kind in vars(package).values():
            if inspect.isclass(kind):
                try:
                    found.setdefault(place, []).append(json.loads(kind().__getstate__()))
                except Exception:  # parameters are required, or the class is a base
                    continue
    return found


def declared(folder):
    folder = Path(folder)
    config_file = folder / "config.json"
    model_type = json.loads(config_file.read_text()).get("model_type") if config_file.is_file() else None
    model_type = JINA_V5[folder.name].lower() if folder.name in JINA_V5 else model_type
    is_known = config_class(model_type) is not None
    try:
        # Without a value, it would ask for one, and read the next request.
        tokenizer = type(AutoTokenizer.from_pretrained(folder, trust_remote_code=any(folder.glob("*.py"))))
    except Exception:  # reported by the first run of the model
        tokenizer = PreTrainedTokenizerBase
    return {
        "config": config_keys(model_type) if is_known else {},
        "inner": inner_keys(model_type) if is_known else {},
        "rope": rope()["keys"],
        "rope_types": rope()["types"],
        "layer_types": list(configuration_utils.ALLOWED_LAYER_TYPES),
        "architectures": architectures(model_type) if is_known else [],
        "gliner": gliner_keys() if (folder / "gliner_config.json").is_file() else {},
        "activations": list(transformers.activations.ACT2FN),
        "tokenizer": keys(tokenizer),
        "tokenizer_classes": tokenizer_classes(),
        "modules": module_classes(),
        "transformer": keys(modules.Transformer),
        "model": keys(__import__("sentence_transformers").SentenceTransformer),
        "generation": {**keys(GenerationConfig), **{name: plain(value) for name, value in GenerationConfig().to_dict().items()}},
        "components": components(),
    }
