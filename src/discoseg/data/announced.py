"""What a header announces, compared with its file and with the memory there is before anything is allocated."""

from pathlib import Path

from discoseg.errors import UserError

DEFLATE = 1032  # bytes that one byte of gzip's and zlib's streams can stand for at most
SLACK_BYTES = 2**20  # what a file may hold behind its voxels
_SHARE = 0.5  # of the memory that this process may use, for the voxels of one file


def require_room(path: Path, voxel_bytes: int, stored_bytes: int, *, ratio: int = 1, memory_bytes: int = 0) -> None:
    """Refuse voxels that their file cannot hold, or that memory should not.

    ``stored_bytes`` is what the file has for them, each of which stands for ``ratio`` bytes at most; ``memory_bytes``
    is what they take once they are read, where that is more than ``voxel_bytes``.
    """
    from discoseg.data.memory import GIB, usable_memory_bytes

    if voxel_bytes > stored_bytes * ratio:
        raise UserError(
            f"{path} cannot be read, it may be truncated or damaged: its header announces {voxel_bytes} bytes of "
            f"voxels, and the {stored_bytes} bytes that are there cannot hold them"
        )
    needed, most = max(voxel_bytes, memory_bytes), _SHARE * usable_memory_bytes()
    if needed > most:
        raise UserError(
            f"{path}: its voxels take {needed / GIB:.1f} GiB, more than half of the memory there is; "
            f"crop or resample it to {most / GIB:.1f} GiB"
        )
