"""Opening what lies below a root so that nothing can lead out of it.

Each part of a path is opened by itself, relative to the folder that was opened before it, and without following
links: what was checked is what is read, whatever is swapped meanwhile. A link is followed by hand, part by part in
the same way, and may lead to any place below the root (a trainer's `latest`, a hub's snapshot). `..` in a link goes
back to the folder that was come from, never to what the file system calls its parent; an absolute one begins at the
root again.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from lorad.sources.reject import Changed, malformed, reject

LINKS_MAX = 16
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_NOTHING = (errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.ENAMETOOLONG, errno.ESTALE)


class Beneath:
    """A place below a root: the open folders that lead to it, the root's first."""

    def __init__(self, root: Path, where: str) -> None:
        self._where, self._root = where, root
        try:
            self._folders = [os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
        except OSError as error:
            raise reject("source_unreachable", f"a root of sources: {os.strerror(error.errno or 0)}") from None

    def enter(self, parts: Iterable[str]) -> None:
        """Goes on to a folder; FileNotFoundError if there is none."""
        opened = self._walk(parts)
        if not stat.S_ISDIR(os.fstat(opened[-1]).st_mode):
            self._close(opened)
            raise FileNotFoundError
        # Those that lie between stay open too: links may lead back to them.
        self._folders = opened

    def open(self, name: str) -> int:
        """Opens a file of this folder, which must be a plain one; FileNotFoundError if nothing is there."""
        opened = self._walk([name])
        file = opened.pop()
        self._close(opened)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise reject("source_path", f"{name} in {self._where!r} isn't a plain file")
        return file

    def kind(self, parts: Iterable[str]) -> int:
        """`stat.S_IFMT` of what the parts lead to, 0 if nothing is there."""
        try:
            opened = self._walk(parts)
        except FileNotFoundError:
            return 0
        found = stat.S_IFMT(os.fstat(opened[-1]).st_mode)
        self._close(opened)
        return found

    def names(self) -> list[str]:
        """What lies in this folder."""
        with os.scandir(self._folders[-1]) as entries:
            return [entry.name for entry in entries]

    def close(self) -> None:
        """Closes all folders."""
        for folder in self._folders:
            os.close(folder)
        self._folders = []

    def _close(self, opened: Iterable[int]) -> None:
        for file in opened:
            if file not in self._folders:
                os.close(file)

    def _walk(self, parts: Iterable[str]) -> list[int]:
        """What the parts lead to, open, after the folders on its way; those of `_folders` are shared."""
        opened, todo, links = list(self._folders), list(reversed(list(parts))), 0
        try:
            while todo:
                part = todo.pop()
                if part in ("", "."):
                    continue
                if part == "..":
                    if len(opened) == 1:
                        raise self._outside()
                    self._close([opened.pop()])
                    continue
                try:
                    opened.append(os.open(part, _OPEN, dir_fd=opened[-1]))
                except OSError as error:
                    target = self._link(part, opened[-1], error)
                    links += 1
                    if links > LINKS_MAX:
                        raise self._outside() from None
                    if target.startswith("/"):
                        target = self._below(target)
                        self._close(opened[1:])
                        del opened[1:]
                    todo += reversed(target.split("/"))
        except BaseException:
            self._close(opened)
            raise
        return opened

    def _link(self, part: str, folder: int, error: OSError) -> str:
        if error.errno == errno.ELOOP:
            try:
                return os.readlink(part, dir_fd=folder)
            except OSError:
                raise Changed(f"{part} isn't a link any more") from None
        if error.errno in (errno.EACCES, errno.EPERM):
            raise reject("source_denied", f"{part} in {self._where!r} can't be opened by this process") from None
        if error.errno in _NOTHING:
            raise FileNotFoundError(part) from None
        raise reject("source_unreachable", f"{part} in {self._where!r}: {os.strerror(error.errno or 0)}") from None

    def _below(self, target: str) -> str:
        """What an absolute link means from the root on."""
        parts = [part for part in target.split("/") if part]
        for root in (self._root, self._root.resolve()):
            start = list(root.parts[1:])
            if parts[: len(start)] == start:
                return "/".join(parts[len(start) :])
        raise self._outside()

    def _outside(self) -> Exception:
        return malformed("source_path", f"{self._where!r} has a link that leads out of its root or in circles")
