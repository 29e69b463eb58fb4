"""Images: every test file of Pillow through `read_size` and `decode`, and what verifying and scaling down cost.

Pillow's source distribution has about a thousand files in Tests/images, broken and hostile ones among them. Each is
tried in a process apart that is killed after 5 s of processor time; the most memory it took is read from /proc.
The peer is Pillow with all its plug-ins: its size from the header, then `convert("RGB")`.
"""

import io
import json
import resource
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import PIL
from PIL import Image

from packing_udfs.encode.images import ImageError, decode, prepare, read_size

ROOT = Path(__file__).parents[2]
CACHE = ROOT / "build" / "bench"
MAX_SECONDS, MAX_MIB = 5, 1024
_ADDRESS_SPACE = 3 << 30  # what a process may have at all, so that a bomb ends itself and not the machine


def run() -> Iterator[dict]:
    """All figures of images, one dict each."""
    label = f"Tests/images of Pillow {PIL.__version__}"
    try:
        files = _files(_sdist())
    except subprocess.CalledProcessError as error:
        yield {"metric": "num_files", "input": label, "skipped": f"pip cannot download it: {error.stderr[-200:]}"}
    else:
        yield from _figures(label, {name: _try_all(files, name) for name in _USES})
    yield from _costs()


def _sdist() -> Path:
    """The source distribution of the Pillow that is installed, downloaded once. Raises CalledProcessError."""
    path = CACHE / f"pillow-{PIL.__version__}.tar.gz"
    if not path.exists():
        command = ["pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", CACHE]
        command = [sys.executable, "-m", *command, f"pillow=={PIL.__version__}"]
        subprocess.run(command, check=True, capture_output=True, text=True)
    return path


def _files(sdist: Path) -> list[Path]:
    folder = CACHE / sdist.name.removesuffix(".tar.gz")
    if not folder.exists():
        with tarfile.open(sdist) as archive:
            members = [member for member in archive if "/Tests/images/" in member.name]
            archive.extractall(CACHE, members, filter="data")
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _figures(label: str, results: dict[str, list[dict]]) -> Iterator[dict]:
    def line(metric: str, unit: str, count: Callable[[list[dict]], object]) -> dict:
        ours, peer = count(results["ours"]), count(results["pillow"])
        return {"metric": metric, "input": label, "ours": ours, "peer": {"pillow": peer}, "unit": unit}

    def number(key: str) -> Callable[[list[dict]], int]:
        return lambda found: sum(bool(one.get(key)) for one in found)

    def mean(key: str, scale: float) -> Callable[[list[dict]], float]:
        return lambda found: round(scale * float(np.mean([one[key] for one in found if one.get("kept")])), 2)

    yield line("num_files", "files", len)
    yield line("kept", "files", number("kept"))
    yield line("refused", "files by reason, and where it shows", _refused)
    yield line("crashes", "files with another exception, or a process lost", number("crash"))
    yield line("over_5s", "files of more processor time", number("over_5s"))
    yield line("over_1gb", "files of more memory", number("over_1gb"))
    yield line("disagreements", "files whose pixels are not what the header promised", number("disagrees"))
    yield line("header_only_us", "µs an image kept, mean", mean("header_s", 1e6))
    yield line("decode_ms", "ms an image kept, mean", mean("decode_s", 1e3))
    yield line("slowest_s", "s", lambda found: round(max(one.get("decode_s", 0) for one in found), 2))
    yield line("largest_mib", "MiB", lambda found: max(one.get("mib", 0) for one in found))


def _refused(found: list[dict]) -> dict[str, int]:
    return dict(sorted(Counter(f"{one['reason']} at {one['at']}" for one in found if "reason" in one).items()))


def _costs() -> Iterator[dict]:
    """What `images.verify` and `images.max_side` cost an image, the best of three."""
    for label, height, width in (("640 × 480", 480, 640), ("4000 × 3000", 3000, 4000)):
        noise = np.random.default_rng(0).integers(0, 256, (height // 8, width // 8, 3), np.uint8)
        out = io.BytesIO()
        Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC).save(out, "JPEG", quality=85)
        data = out.getvalue()
        options = {"header": {}, "decode": {"verify": "decode"}, "max_side of half": {"max_side": width // 2}}
        costs = {name: 1e3 * _timed(prepare, data, **given)[0] for name, given in options.items()}
        for name, cost in costs.items():
            yield {
                "metric": f"prepare_ms, {name}",
                "input": f"JPEG of {label}, {len(data) // 1000} kB",
                "ours": round(cost, 3),
                "peer": {},
                "unit": "ms / image",
            }


def _timed(use: Callable, *args, **options) -> tuple[float, object]:
    """Seconds, the least of three times (clocks of processor time are too coarse for a header), and the result."""
    times = []
    for _ in range(3):
        result = None  # two are not held at a time
        start = time.perf_counter()
        result = use(*args, **options)
        times.append(time.perf_counter() - start)
    return min(times), result


# In a process apart


def _try_all(files: list[Path], name: str) -> list[dict]:
    """What became of each file. Where a file ends the process, a new one goes on behind it."""
    found: list[dict] = []
    while len(found) < len(files):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "tests.bench.images", name],
            input="\n".join(map(str, files[len(found) :])), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, cwd=ROOT,
        )  # fmt: skip
        found += map(json.loads, done.stdout.splitlines())
        if len(found) < len(files):
            is_timer = done.returncode == -signal.SIGPROF
            found.append({"file": str(files[len(found)]), "over_5s" if is_timer else "crash": True})
    return found


def _pillow_size(data: bytes) -> tuple[int, int]:
    with Image.open(io.BytesIO(data)) as image:
        return image.height, image.width


def _pillow_decode(data: bytes) -> Image.Image:
    with Image.open(io.BytesIO(data)) as image:
        return image.convert("RGB")


# The use of a header, of a body, and how each refuses.
_USES = {"ours": (read_size, decode, ImageError), "pillow": (_pillow_size, _pillow_decode, Exception)}


def _try(path: Path, name: str) -> dict:
    """Outcome of one file: kept with its times, refused with its reason, or a fault."""
    data, (size_of, pixels_of, refusal) = path.read_bytes(), _USES[name]
    found: dict = {"file": path.name}
    reasons = {}

    def timed(half: str, use: Callable):
        def limited():
            signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)  # ends the process, in C code too
            return use(data)

        try:
            found[half], result = _timed(limited)
            return result
        except refusal as error:
            reasons[half] = getattr(error, "reason", type(error).__name__)
            found["over_1gb"] = "MemoryError" in f"{type(error)} {error}"
            return None
        except Exception as error:  # noqa: BLE001 - any at all is what is looked for
            found["crash"] = f"{type(error).__name__}: {error}"
            return None

    Path("/proc/self/clear_refs").write_text("5")  # the peak of memory starts anew
    size, image = timed("header_s", size_of), timed("decode_s", pixels_of)
    signal.setitimer(signal.ITIMER_PROF, 0)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    found["mib"] = int(status["VmHWM"].split()[0]) // 1024
    found["over_1gb"] = found.get("over_1gb") or found["mib"] > MAX_MIB
    if image is not None:
        found |= {"kept": size is not None, "disagrees": size != (image.height, image.width) or image.mode != "RGB"}
    elif "crash" not in found:
        found |= {"at": "body" if size else "header", "reason": reasons.get("header_s", reasons.get("decode_s"))}
        found["disagrees"] = size is None and len(set(reasons.values())) != 1
    return found


def _main(name: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    for line in sys.stdin.read().splitlines():
        print(json.dumps(_try(Path(line), name)), flush=True)


if __name__ == "__main__":
    _main(sys.argv[1])
