"""Take the first images of Fashion-MNIST: `python3 subset.py FROM TO`, folders with the four files of the original."""

import gzip
import pathlib
import struct
import sys

source, target = map(pathlib.Path, sys.argv[1:])
for part, count in ("train", 6000), ("t10k", 1000):
    for kind, dimensions in ("images-idx3", 3), ("labels-idx1", 1):
        name = f"{part}-{kind}-ubyte.gz"
        data = gzip.decompress((source / name).read_bytes())
        magic, _, *shape = struct.unpack_from(f">{1 + dimensions}I", data)
        begin, item = 4 + 4 * dimensions, 28 * 28 if shape else 1
        head = struct.pack(f">{1 + dimensions}I", magic, count, *shape)
        # Without a time or a name, so that it comes out the same again.
        (target / name).write_bytes(gzip.compress(head + data[begin : begin + count * item], 9, mtime=0))
