"""Random changes of one key, value, class or tensor of a model's files."""

import copy
import json
import random

import tensors

MODULES = "modules.json"
# Files and what their keys are declared by.
FILES = {
    "config.json": "config",
    "gliner_config.json": "gliner",
    "tokenizer_config.json": "tokenizer",
    "special_tokens_map.json": "tokenizer",
    "generation_config.json": "generation",
    "sentence_bert_config.json": "transformer",
    "config_sentence_transformers.json": "model",
}
# Objects with the settings of rotary positions.
ROPE = {"rope_parameters", "rope_scaling"}
STRINGS = ["", "none", "mean", "cls", "left", "right", "max", "absolute", "relative_key", "eager", "float16", "[UNK]", "a"]
NUMBERS = [0, 1, 2, 3, 5, 8, 16, -1, 0.0, 0.5, 1.5, 1e-3, 64, 10000.0]


class Change:
    """A change of the files of a model: new contents of files by name (nothing removes one), and its description."""

    def __init__(self, files, text):
        self.files, self.text = files, text


def other_value(value, chosen, pool):
    """Another value of the type, or of any type."""
    if isinstance(value, bool):
        return not value if chosen.random() < 0.8 else chosen.choice([None, "true", 0, 1])
    if isinstance(value, (int, float)):
        near = [value + 1, value - 1, value * 2, value // 2 if isinstance(value, int) else value / 2, 0, float(value), None]
        return chosen.choice([*near, *chosen.sample(NUMBERS, 3)])
    if isinstance(value, str):
        return chosen.choice([*pool, *chosen.sample(STRINGS, 3), value.upper(), value + "x", None])
    if isinstance(value, list):
        shuffled = chosen.sample(value, len(value))
        return chosen.choice([[], value[:-1], value + value[-1:], shuffled, None, value[:1]])
    if isinstance(value, dict):
        smaller = {key: inner for key, inner in value.items() if key != chosen.choice([*value, None])}
        return chosen.choice([{}, smaller, None])
    return chosen.choice([True, False, True, False, None, *NUMBERS, *STRINGS, [], {}, [0], ["a"], {"a": 1}])


def places(value, path=()):
    """All places below a value, as paths."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inner:
        yield (*path, key)
        yield from places(below, (*path, key))


def at(value, path):
    for key in path:
        value = value[key]
    return value


class Mutator:
    """Makes changes of one fixture, from what all reference versions declare for it."""

    def __init__(self, folder, declarations, chosen):
        self.folder, self.chosen = folder, chosen
        self.json = {
            str(path.relative_to(folder)): json.loads(path.read_text())
            for path in sorted(folder.rglob("*")) if path.suffix in (".json", ".metadata") and path.stat().st_size < 1 << 20
        }
        self.json = {name: content for name, content in self.json.items() if name not in ("vocab.json",)}
        self.declarations = declarations

    def declared(self, part):
        merged = {}
        for declaration in self.declarations:
            merged.update(declaration[part])
        return merged

    def listed(self, part):
        return sorted({name for declaration in self.declarations for name in declaration[part]})

    def pool(self, path):
        """Values for the strings at a place."""
        key = next(name for name in reversed(path) if isinstance(name, str))
        if "act" in key or key in ("dense_act_fn", "feed_forward_proj"):
            return self.listed("activations")
        return {
            "architectures": self.listed("architectures"),
            "tokenizer_class": self.listed("tokenizer_classes"),
            "type": self.listed("rope_types" if ROPE & {*path} else "modules"),
            "rope_type": self.listed("rope_types"),
            "layer_types": self.listed("layer_types"),
            "pooling_mode": ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"],
            "classifier_pooling": ["cls", "mean"],
            "problem_type": ["regression", "single_label_classification", "multi_label_classification"],
        }.get(key, [])

    def change(self, kinds):
        """A random change of one of these kinds that changes something."""
        while True:
            kind = self.chosen.choice(kinds)
            made = getattr(self, kind)()
            if made is not None:
                return made

    def written(self, name, content, text):
        if content == self.json[name]:
            return None
        return Change({name: json.dumps(content, ensure_ascii=False).encode()}, f"{name}: {text}")

    def set(self, name, path, value):
        content = copy.deepcopy(self.json[name])
        before = at(content, path)
        at(content, path[:-1])[path[-1]] = value
        shown = ".".join(map(str, path))
        return self.written(name, content, f"{shown} = {json.dumps(value)[:80]} (was {json.dumps(before)[:80]})")

    def value(self):
        """Another value of a key that a file has."""
        name = self.chosen.choice([name for name in self.json if name not in ("tokenizer.json",)])
        found = list(places(self.json[name]))
        if not found:
            return None
        path = self.chosen.choice(found)
        return self.set(name, path, other_value(at(self.json[name], path), self.chosen, self.pool(str(path[-1]))))

    def removal(self):
        """A file without one of its keys."""
        name = self.chosen.choice([name for name in self.json if name not in ("tokenizer.json",)])
        found = [path for path in places(self.json[name]) if isinstance(path[-1], str)]
        if not found:
            return None
        path = self.chosen.choice(found)
        content = copy.deepcopy(self.json[name])
        before = at(content, path)
        del at(content, path[:-1])[path[-1]]
        return self.written(name, content, f"without {'.'.join(map(str, path))} (was {json.dumps(before)[:80]})")

    def declared_key(self):
        """A key that classes declare, with its default or another value."""
        name = self.chosen.choice([name for name in FILES if name in self.json])
        return self.add(name, self.declared(FILES[name]))

    def inner_key(self):
        """A declared key of an object inside of a config: of another config, of a layer or of rotary positions."""
        name = "config.json"
        content = self.json.get(name, {})
        inner = self.declared("inner")
        owners = [(), *((key,) for key in inner if isinstance(content.get(key), dict))]
        found = [(path, inner[path[0]] if path else self.declared("config")) for path in owners]
        made = []
        for path, declared in found:
            for key, value in at(content, path).items():
                below = [(*path, key), *((*path, key, *rest) for rest in places(value))] if isinstance(value, dict) else []
                kind = self.declared("rope") if key in ROPE else declared if key == "per_layer_config" else None
                made += [(place, kind) for place in below if kind and isinstance(at(content, place), dict)]
        found = [(path, declared) for path, declared in found if path] + made
        return self.add(name, *reversed(self.chosen.choice(found))) if found else None

    def rope(self):
        """Other rotary positions, with a few keys."""
        name, declared = "config.json", self.declared("rope")
        if name not in self.json or not declared:
            return None
        content = copy.deepcopy(self.json[name])
        owner = content.get(self.chosen.choice([None, *self.declared("inner")]), content)
        key = self.chosen.choice(sorted(ROPE))
        keys = self.chosen.sample(sorted(declared), self.chosen.randrange(5))
        made = {"rope_type": self.chosen.choice(self.listed("rope_types")), **{key: declared[key] for key in keys}}
        before = (owner if isinstance(owner, dict) else content).get(key)
        kinds = [kind for kind in before if isinstance(before[kind], dict)] if isinstance(before, dict) else []
        if kinds:
            made = {**before, self.chosen.choice(kinds): made}
        (owner if isinstance(owner, dict) else content)[key] = made
        return self.written(name, content, f"{key} = {json.dumps(made)[:300]}")

    def add(self, name, declared, path=()):
        if not declared:
            return None
        key = self.chosen.choice(sorted(declared))
        default = declared[key]
        value = default if self.chosen.random() < 0.1 else other_value(default, self.chosen, self.pool((*path, key)))
        content = copy.deepcopy(self.json[name])
        at(content, path)[key] = value
        return self.written(name, content, f"{'.'.join(map(str, (*path, key)))} = {json.dumps(value)[:80]}")

    def generation_key(self):
        name = "generation_config.json"
        if name not in self.json:
            return None
        return self.add(name, self.declared("generation"))

    def generation_value(self):
        name = self.chosen.choice([name for name in ("generation_config.json", "config.json") if name in self.json])
        found = list(places(self.json[name]))
        path = self.chosen.choice(found)
        if name == "config.json" and path[0] not in self.declared("generation") and path[0] != "task_specific_params":
            return None
        return self.set(name, path, other_value(at(self.json[name], path), self.chosen, []))

    def module_key(self):
        """A declared key of a module."""
        if MODULES not in self.json:
            return None
        declared = self.declared("modules")
        found = [
            (f"{module['path']}/config.json", declared.get(module["type"], {})) for module in self.json[MODULES]
            if f"{module['path']}/config.json" in self.json
        ]
        return self.add(*self.chosen.choice(found)) if found else None

    def class_name(self):
        """Another class of a model, tokenizer or module."""
        places = [("config.json", ("architectures", 0)), ("tokenizer_config.json", ("tokenizer_class",))]
        places += [(MODULES, (index, "type")) for index in range(len(self.json.get(MODULES, [])))]
        name, path = self.chosen.choice(places)
        try:
            at(self.json[name], path)
        except (KeyError, IndexError, TypeError):
            return None
        return self.set(name, path, self.chosen.choice(self.pool(path)))

    def component(self):
        """Another part of `tokenizer.json`, or another value in one."""
        name = "tokenizer.json"
        if name not in self.json:
            return None
        parts = {key: part for key, part in self.json[name].items() if key not in ("version",)}
        parts["model"] = {key: part for key, part in parts["model"].items() if key not in ("vocab", "merges")}
        part = self.chosen.choice(sorted(parts))
        made = self.declared("components").get(part)
        if made and self.chosen.random() < 0.2:
            return self.set(name, (part,), self.chosen.choice(made))
        found = list(places(parts[part]))
        if not found:
            return None
        path = self.chosen.choice(found)
        before = at(parts[part], path)
        if isinstance(before, dict) and self.chosen.random() < 0.3:
            content = copy.deepcopy(self.json[name])
            at(content, (part, *path))["unknown_key"] = True
            return self.written(name, content, f"{part}.{'.'.join(map(str, path))}: unknown_key")
        return self.set(name, (part, *path), other_value(before, self.chosen, self.same_type(part, path[-1])))

    def same_type(self, part, key):
        types = [made["type"] for made in self.declared("components").get(part, [])]
        return types if key == "type" else {"content": [" ", "▁", "Ġ", "x"], "behavior": [
            "Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous",
        ], "prepend_scheme": ["always", "never", "first"]}.get(key, [])

    def tensor(self):
        """A tensor with another name, type or shape, or without it."""
        paths = sorted(self.folder.rglob("*.safetensors"))
        if not paths:
            return None
        path = self.chosen.choice(paths)
        content, text = tensors.changed(path.read_bytes(), self.chosen)
        name = str(path.relative_to(self.folder))
        return content and Change({name: content}, f"{name}: {text}")

    def file(self):
        """A file less."""
        found = [str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()]
        found = sorted(name for name in found if not name.endswith((".safetensors", ".txt")))
        name = self.chosen.choice(found)
        return Change({name: None}, f"without {name}")


ENCODERS = ["value"] * 5 + ["declared_key"] * 6 + ["removal"] * 3 + ["module_key"] * 2 + ["component"] * 4 + ["inner_key"] * 4 + [
    "rope", "class_name", "tensor", "tensor", "file",
]
GENERATION = ["generation_key"] * 6 + ["generation_value"] * 3 + ["value"] * 2 + ["removal"] * 2 + ["declared_key"] * 2 + [
    "class_name", "tensor", "component",
]
