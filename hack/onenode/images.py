"""Images for the cluster's own Pods, made of one static binary each, in the form that `docker save` writes."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path


def single_binary_image(reference: str, binary: Path) -> bytes:
    """A tar archive of an image that holds `binary` and runs it as a user without rights."""
    path = binary.name
    layer = _tar({path: binary.read_bytes()}, mode=0o755)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": [f"/{path}"], "User": "65532:65532"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [reference], "Layers": ["layer.tar"]}]
    return _tar(
        {
            "layer.tar": layer,
            "config.json": json.dumps(config).encode(),
            "manifest.json": json.dumps(manifest).encode(),
        }
    )


def _tar(files: Mapping[str, bytes], *, mode: int = 0o644) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            member.mode = mode
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
