#!/usr/bin/env python3
"""Reads the weights of an estream bundle, with the standard library of Python 3.11 alone.

Written from docs/format.md to show that the page suffices: it shares no code with
estream, and is made to be read rather than to be fast.

    read_bundle.py BUNDLE list                                every weight and its layout
    read_bundle.py BUNDLE resident NAME ROW                   a row, decoded
    read_bundle.py BUNDLE expert LAYER EXPERT PROJECTION ROW  a whole row, across shards
    read_bundle.py BUNDLE checksum                            SHA-256 of each weight as f32
    read_bundle.py BUNDLE batch                               the above, one a line of stdin

PROJECTION is gate, up or down. ROW is a number, or `all` for one line a row. Values are
f32, printed as decimals that read back as the same number.

Section 7 of the page is checked before anything is decoded, except for: the program, the
ledger and other members that say nothing about weights, which are left unread; and
digests, which are BLAKE3: they are compared only where hashlib offers it.
"""

import hashlib
import json
import os
import re
import stat
import struct
import sys

from layouts import Refused, band, band_row, layout_bytes, need

ALIGN = 16384
MIB = 1 << 20
PROJECTIONS = ("gate", "up", "down")


# ---- manifest.json ----
# A dict has exactly these members, those with "?" perhaps; a list is an array of its
# element; a type is a type; a pattern is a string that it describes as a whole.

DIGEST = re.compile("[0-9a-f]{64}")
NAME = re.compile(r"[A-Za-z0-9._-]{1,256}")
FILE = re.compile(r"(?=.{1,256}$)(?![.])[A-Za-z0-9._-]*[A-Za-z0-9_-]")
LAYOUT = re.compile(r"[a-z0-9_]+\.(t32|t32\.direct|t32\.pair|rows)")
REGION = {"layout": LAYOUT, "rows": int, "cols": int, "offset": int, "bytes": int}
CARRIED = {"file": str, "bytes": int, "digest": DIGEST}
MANIFEST = {
    "format": str, "version": int, "kernel_abi": int, "model": dict, "recipe": dict,
    "program": {"vocab": int, "context": int, "registers": list, "prologue": list,
                "layers": list, "epilogue": list},
    "resident": {"bytes": int, "tensors": [{
        "name": NAME, "layout": LAYOUT, "shape": [int], "offset": int, "bytes": int,
        "digest": DIGEST}]},
    "experts": {"slot_bytes": int, "parts": [{"file": FILE, "bytes": int}], "layers": [{
        "layer": int, "part": int, "offset": int, "record_bytes": int, "experts": int,
        "shards": int, "order": [int], "gate": REGION, "up": REGION, "down": REGION,
        "digests": [DIGEST]}]},
    "descriptor": {"digest": DIGEST, "text": str}, "ledger": list,
    "source": {"format": str, "files": list, "metadata?": CARRIED},
    "tokenizer": [CARRIED], "license": {"declared": object, "files": [CARRIED]},
}


def conform(value, want, place):
    if isinstance(want, dict):
        need(isinstance(value, dict), f"{place} is not an object")
        members = {name.rstrip("?"): rule for name, rule in want.items()}
        need(value.keys() <= members.keys(), f"{place} has an unknown member")
        for name, rule in members.items():
            need(name in value or f"{name}?" in want, f"{place}/{name} is missing")
            if name in value:
                conform(value[name], rule, f"{place}/{name}")
    elif isinstance(want, list):
        need(isinstance(value, list), f"{place} is not an array")
        for index, element in enumerate(value):
            conform(element, want[0], f"{place}/{index}")
    elif isinstance(want, re.Pattern):
        need(isinstance(value, str) and want.fullmatch(value), f"{place} is malformed")
    elif want is int:
        need(type(value) is int and 0 <= value < 1 << 64, f"{place} is not an integer")
    else:
        need(isinstance(value, want), f"{place} is not a {want.__name__}")


def parse(data):
    need(len(data) <= 16 * MIB, "more than 16 MiB")
    strings = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)
    need(all(len(found[1]) < MIB for found in strings.finditer(data)), "a string of a MiB")
    bare = strings.sub(b"", data)
    need(sum(bare.count(mark) for mark in b",[{") <= 1 << 19, "too many values")

    def once(pairs):
        need(len({name for name, _ in pairs}) == len(pairs), "a member is stated twice")
        return dict(pairs)

    def no_float(text):
        raise Refused(f"{text} is not an integer")

    try:
        manifest = json.loads(data.decode("utf-8"), object_pairs_hook=once,
                              parse_float=no_float, parse_constant=no_float)
    except (ValueError, RecursionError) as error:
        raise Refused(f"not JSON: {error}") from error
    need(isinstance(manifest, dict), "not an object")
    for name, known in (("format", "estream-bundle"), ("version", 1), ("kernel_abi", 1)):
        found = manifest.get(name)
        need(type(found) is type(known) and found == known, f"unknown {name}: {found!r:.80}")
    conform(manifest, MANIFEST, "")
    return manifest


# ---- weights ----

def align(offset):
    return -(-offset // ALIGN) * ALIGN


class Matrix:
    """Rows and columns that lie together in a file of the bundle."""

    def __init__(self, bundle, file, base, layout, rows, cols):
        self.bundle, self.file, self.base, self.layout = bundle, file, base, layout
        self.rows, self.cols, self.last = rows, cols, (None, b"")

    def row(self, n):
        height, size = band(self.layout, self.cols)
        if self.last[0] != n // height:
            offset = self.base + n // height * size
            self.last = (n // height, self.bundle.read(self.file, offset, size))
        return band_row(self.layout, self.cols, self.last[1], n % height)


class Weight:
    """A whole weight: one matrix, or the shards of an expert's, stacked or side by side."""

    def __init__(self, name, shards, side_by_side=False):
        self.name, self.shards, self.side_by_side = name, shards, side_by_side
        self.layout, count = shards[0].layout, len(shards)
        self.rows = shards[0].rows * (1 if side_by_side else count)
        self.cols = shards[0].cols * (count if side_by_side else 1)

    def row(self, n):
        need(0 <= n < self.rows, f"{self.name} has no row {n}, but {self.rows} rows")
        if self.side_by_side:
            return [value for shard in self.shards for value in shard.row(n)]
        height = self.shards[0].rows
        return self.shards[n // height].row(n % height)


# ---- the bundle ----

class Bundle:
    def __init__(self, path):
        self.root = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        with self.open("manifest.json") as file:
            self.manifest = parse(file.read(16 * MIB + 1))
        self.check_files()
        self.check_resident()
        self.check_experts()

    def open(self, name):
        folder, _, leaf = name.rpartition("/")
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        parent = os.open(folder or ".", flags | os.O_DIRECTORY, dir_fd=self.root)
        try:
            file = open(os.open(leaf, flags, dir_fd=parent), "rb")
        finally:
            os.close(parent)
        need(stat.S_ISREG(os.fstat(file.fileno()).st_mode), f"{name} is not a regular file")
        return file

    def read(self, name, offset, size):
        with self.open(name) as file:
            file.seek(offset)
            data = file.read(size)
        need(len(data) == size, f"{name} ends early")
        return data

    def verify(self, name, offset, size, digest):
        if "blake3" in hashlib.algorithms_available:
            found = hashlib.new("blake3", self.read(name, offset, size)).hexdigest()
            need(found == digest, f"{name} is damaged at {offset}")

    def check_files(self):
        m = self.manifest
        parts, sizes = m["experts"]["parts"], {"resident.bin": m["resident"]["bytes"]}
        beside = m["license"]["files"] + [m["source"][k] for k in m["source"] if k == "metadata"]
        need(len(parts) <= 4096 and len(beside) + len(m["tokenizer"]) <= 64, "too many files")
        for index, part in enumerate(parts):
            need(part["file"] == f"experts-{index + 1:05}.bin", f"part {part['file']}")
        reserved = ("manifest.json", "plans", "tokenizer")
        for carried in beside:
            name = carried["file"]
            need(FILE.fullmatch(name) and name not in reserved, f"file name {name!r}")
        for carried in m["tokenizer"]:
            folder, _, leaf = carried["file"].partition("/")
            need(folder == "tokenizer" and FILE.fullmatch(leaf), f"file name {carried['file']!r}")
        for entry in parts + beside + m["tokenizer"]:
            need(entry["file"] not in sizes, f"{entry['file']} is named twice")
            sizes[entry["file"]] = entry["bytes"]
        for name, size in sizes.items():
            with self.open(name) as file:
                need(os.fstat(file.fileno()).st_size == size, f"{name} is not {size} bytes")
        for carried in beside + m["tokenizer"]:
            self.verify(carried["file"], 0, carried["bytes"], carried["digest"])

    def check_resident(self):
        end, self.weights = 0, {}
        need(len(self.manifest["resident"]["tensors"]) <= 65536, "too many tensors")
        for tensor in self.manifest["resident"]["tensors"]:
            name, layout, shape, size = (tensor[k] for k in ("name", "layout", "shape", "bytes"))
            need(name not in self.weights, f"{name} is stated twice")
            need(len(shape) in (1, 2), f"{name} has {len(shape)} dimensions")
            rows, cols = [1, *shape][-2:]
            need(tensor["offset"] == align(end), f"{name} is not where its neighbour ends")
            need(size == layout_bytes(layout, rows, cols), f"{name} has a wrong size")
            padding = self.read("resident.bin", end, align(end) - end)
            need(not any(padding), f"padding before {name} is not zero")
            self.verify("resident.bin", tensor["offset"], size, tensor["digest"])
            matrix = Matrix(self, "resident.bin", tensor["offset"], layout, rows, cols)
            self.weights[name] = Weight(name, [matrix])
            end = tensor["offset"] + size
        need(self.manifest["resident"]["bytes"] == align(end), "resident.bin has a wrong size")
        need(not any(self.read("resident.bin", end, align(end) - end)), "padding is not zero")

    def check_experts(self):
        experts, ends, previous = self.manifest["experts"], {}, -1
        layers = self.manifest["program"]["layers"]
        need(len(layers) <= 1024, "too many layers")
        self.layers = {}
        for layer in experts["layers"]:
            index, count, shards = layer["layer"], layer["experts"], layer["shards"]
            where = f"experts of layer {index}"
            need(max(self.layers, default=-1) < index < len(layers), f"{where} out of order")
            need(1 <= count <= 4096 and 1 <= shards <= 256, f"{where}: how many")
            need(sorted(layer["order"]) == list(range(count)), f"{where}: no permutation")
            need(len(layer["digests"]) == count * shards, f"{where}: digests")
            gate, up, down = (layer[projection] for projection in PROJECTIONS)
            need((up["rows"], up["cols"]) == (gate["rows"], gate["cols"]), f"{where}: up")
            need((down["rows"], down["cols"]) == (gate["cols"], gate["rows"]), f"{where}: down")
            need(shards == 1 or gate["rows"] % 32 == 0, f"{where}: shards cut a tile")
            end = 0
            for region in (gate, up, down):
                size = layout_bytes(region["layout"], region["rows"], region["cols"])
                need(region["offset"] == align(end), f"{where}: a region's offset")
                need(region["bytes"] == size, f"{where}: a region's size")
                end = region["offset"] + size
            need(layer["record_bytes"] == align(end), f"{where}: record_bytes")
            # The first layer is in part 0, a later one in the same part or the next.
            part, step = layer["part"], layer["part"] - previous
            need(step == 1 or step == 0 and previous >= 0, f"{where}: part {part}")
            need(part < len(experts["parts"]), f"{where}: part {part}")
            need(layer["offset"] == ends.get(part, 0), f"{where}: offset")
            ends[part] = layer["offset"] + count * shards * layer["record_bytes"]
            previous = part
            self.layers[index] = layer
        need([ends.get(i) for i in range(len(experts["parts"]))]
             == [part["bytes"] for part in experts["parts"]], "a part has a wrong size")
        largest = max((layer["record_bytes"] for layer in experts["layers"]), default=0)
        need(experts["slot_bytes"] == largest, "slot_bytes is not the largest record")

    def expert(self, index, expert, projection):
        need(index in self.layers, f"layer {index} has no experts")
        layer = self.layers[index]
        need(0 <= expert < layer["experts"], f"layer {index} has no expert {expert}")
        need(projection in PROJECTIONS, f"no projection {projection!r}")
        file, region = self.manifest["experts"]["parts"][layer["part"]]["file"], layer[projection]
        matrices = []
        for shard in range(layer["shards"]):
            record = layer["order"].index(expert) * layer["shards"] + shard
            base = layer["offset"] + record * layer["record_bytes"]
            self.verify(file, base, layer["record_bytes"], layer["digests"][record])
            matrices.append(Matrix(self, file, base + region["offset"], region["layout"],
                                   region["rows"], region["cols"]))
        name = f"layers.{index}.expert_{projection}.{expert}"
        return Weight(name, matrices, side_by_side=projection == "down")

    def all_weights(self):
        yield from self.weights.values()
        for index, layer in self.layers.items():
            for expert in range(layer["experts"]):
                for projection in PROJECTIONS:
                    yield self.expert(index, expert, projection)


# ---- what is printed ----

def print_rows(weight, row):
    for n in range(weight.rows) if row == "all" else [int(row)]:
        print(" ".join(map(repr, weight.row(n))))


def checksum(weight):
    digest = hashlib.sha256()
    for n in range(weight.rows):
        digest.update(struct.pack(f"<{weight.cols}f", *weight.row(n)))
    return digest.hexdigest()


def answer(bundle, words):
    match words:
        case ["list"]:
            for weight in bundle.all_weights():
                print(weight.name, weight.layout, weight.rows, weight.cols, len(weight.shards))
        case ["resident", name, row]:
            need(name in bundle.weights, f"there is no resident tensor {name!r}")
            print_rows(bundle.weights[name], row)
        case ["expert", layer, expert, projection, row]:
            print_rows(bundle.expert(int(layer), int(expert), projection), row)
        case ["checksum"]:
            for weight in bundle.all_weights():
                print(checksum(weight), weight.name)
        case ["batch"]:
            for line in sys.stdin:
                answer(bundle, line.split())
        case _:
            raise Refused("see the start of this file for what can be asked")


def main():
    try:
        need(len(sys.argv) > 2, "see the start of this file for what can be asked")
        answer(Bundle(sys.argv[1]), sys.argv[2:])
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Who reads has had enough.
    except (Refused, OSError, ValueError) as error:
        sys.exit(f"read_bundle: {error}")


if __name__ == "__main__":
    main()
