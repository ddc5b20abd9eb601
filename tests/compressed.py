"""Bodies that Youzan's Go clients compressed."""

from __future__ import annotations

import gzip

import cramjam

from gnsq_lite.youzan.compression import CODEC_KEY, SIZE_KEY

BODY = b"created, paid, sent, " * 40


CODECS = ("gzip", "snappy", "lz4")


#: BODY, as go-nsq's codecs pack it.
GO: dict[str, bytes] = {
    "gzip": bytes.fromhex(
        "1f8b08000000000000ff4a2e4a4d2c494dd1512848cc4cd151284ecd2bd15118151c151c15244910100000ffffb7290df048030000"
    ),
    "snappy": bytes.fromhex(
        "c80650637265617465642c20706169642c2073656e742c20fe1500fe1500fe1500fe1500fe1500fe1500fe1500fe1500fe1500"
        "fe1500fe1500fe1500ca1500"
    ),
    "lz4": bytes.fromhex("ff06637265617465642c20706169642c2073656e742c201500ffffff14003303b06169642c2073656e742c20"),
}


#: A few bytes that stand for 16 MiB of zeros; their headers do not say so.
BOMBS: dict[str, bytes] = {
    "gzip": gzip.compress(b"\0" * (16 << 20)),
    "snappy": bytes(cramjam.snappy.compress_raw(b"\0" * (16 << 20))),
    "lz4": bytes(cramjam.lz4.compress_block(b"\0" * (16 << 20), store_size=False)),
}


def said(codec: str, size: int | None = len(BODY), **more: str) -> dict[str, str]:
    return {CODEC_KEY: str(1 + CODECS.index(codec)), **({} if size is None else {SIZE_KEY: str(size)}), **more}
