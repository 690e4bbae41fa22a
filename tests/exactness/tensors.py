"""Changes of safetensors files."""

import array
import json
import struct

SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I8": 1, "F8_E4M3": 1, "I64": 8}
PREFIXES = ["model.", "bert.", "roberta.", "encoder.", "transformer.", "base_model.", "deberta."]


def read(data):
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    body = data[8 + length:]
    return {
        name: (entry["dtype"], entry["shape"], body[slice(*entry["data_offsets"])]) for name, entry in header.items()
    }


def write(tensors):
    header, body = {"__metadata__": {"format": "pt"}}, b""
    for name, (kind, shape, data) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def floats(kind, data):
    if kind == "F32":
        return array.array("f", data)
    if kind == "F16":
        return array.array("f", struct.unpack(f"<{len(data) // 2}e", data))
    if kind == "BF16":
        return array.array("f", b"".join(b"\0\0" + data[at:at + 2] for at in range(0, len(data), 2)))
    return None


def converted(values, kind):
    if kind == "F64":
        return array.array("d", values).tobytes()
    if kind == "F32":
        return values.tobytes()
    if kind == "F16":
        return struct.pack(f"<{len(values)}e", *values)
    if kind == "BF16":
        data = values.tobytes()
        return b"".join(data[at + 2:at + 4] for at in range(0, len(data), 4))
    return bytes(len(values) * SIZES[kind])


def changed(data, chosen):
    """The file with a random change, and its description; nothing if the change is not possible."""
    tensors = read(data)
    name = chosen.choice(sorted(tensors))
    kind, shape, body = tensors[name]
    way = chosen.choice(["remove", "rename", "add", "type", "type", "transpose", "cut", "prefix", "all types"])
    if way == "remove":
        del tensors[name]
    elif way == "rename":
        first, _, last = name.partition(".")
        tensors = {(chosen.choice([last, f"x.{name}", f"{name}2"]) or name) if key == name else key: value
                   for key, value in tensors.items()}
    elif way == "add":
        stem, _, leaf = name.rpartition(".")
        name = chosen.choice([f"{stem}.extra.{leaf}", f"{stem}.{leaf}_scale", f"{stem}.bias", f"extra.{leaf}"])
        if name in tensors:
            return None, ""
        tensors[name] = (kind, shape, body)
    elif way in ("type", "all types"):
        target = chosen.choice([kind for kind in SIZES if kind != "I64"])
        names = [name] if way == "type" else list(tensors)
        for name in names:
            kind, shape, body = tensors[name]
            values = floats(kind, body)
            if values is None:
                return None, ""
            tensors[name] = (target, shape, converted(values, target))
        way = f"{way} {target}"
    elif way == "transpose":
        if len(shape) != 2 or shape[0] == shape[1]:
            return None, ""
        tensors[name] = (kind, shape[::-1], body)
    elif way == "cut":
        if not shape or shape[0] < 2:
            return None, ""
        rows = chosen.choice([shape[0] - 1, shape[0] // 2])
        tensors[name] = (kind, [rows, *shape[1:]], body[:len(body) // shape[0] * rows])
    else:
        prefix = chosen.choice(PREFIXES)
        is_in = any(key.startswith(prefix) for key in tensors)
        tensors = {key.removeprefix(prefix) if is_in else prefix + key: value for key, value in tensors.items()}
        way = f"{'without' if is_in else 'with'} prefix {prefix}"
        name = "all"
    return write(tensors), f"{way} {name}"


def nudged(data, chosen):
    """The file in single precision, each number with another last bit, or with the same."""
    tensors = {}
    for name, (kind, shape, body) in read(data).items():
        values = floats(kind, body)
        if values is not None:
            kind, body = "F32", array.array("i", [bits + chosen.choice([-1, 0, 1]) for bits in array.array("i", values.tobytes())]).tobytes()
        tensors[name] = kind, shape, body
    return write(tensors)
