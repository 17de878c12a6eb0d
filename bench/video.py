"""Video beside Hugging Face's path: `python -m bench.video [--quick]`.

A clip of ten seconds, 720p, H.264, of which frames are asked for at even distances. Hugging Face's
path decodes by PyAV up to the last of them, runs the video processor on the array and saves the
features as safetensors; ours plans, decodes what is needed and writes the features in place. The
frames and features of both are compared before anything is measured. Growth: one frame a second
of longer clips.
"""

import argparse
import io
import tempfile
from pathlib import Path
from typing import Any

from bench.turns import restart_with_environment, row, take_turns, write

SIZE = {"shortest_edge": 4 * 28 * 28, "longest_edge": 768 * 28 * 28}
"""The bound of the published checkpoints' video processor: 602,112 pixels a frame."""
FPS = 30


def encode(seconds: float, width: int, height: int, gop: int) -> bytes:
    """Return a pan over shapes and grain with something that moves, as x264 makes it by default."""
    import av
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(0)
    count = int(seconds * FPS)
    reach = 2 * min(count, 600)
    wide = (width + reach, height)
    coarse = random.integers(0, 256, (height // 48 + 2, wide[0] // 48 + 2, 3), np.uint8)
    ground = np.asarray(Image.fromarray(coarse).resize(wide, Image.Resampling.BICUBIC), np.int16)
    fine = Image.fromarray(random.normal(0, 12, (height // 2, wide[0] // 2)).astype(np.float32))
    ground = ground + np.asarray(fine.resize(wide, Image.Resampling.BICUBIC), np.int16)[..., None]
    grain = random.normal(0, 2, (8, height, width, 1)).astype(np.int16)
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.gop_size = gop
        side = height // 4
        for place in range(count):
            left = 2 * place % (reach + 1)
            picture = ground[:, left : left + width] + grain[place % 8]
            x = int((width - side) * (0.5 + 0.4 * np.sin(place / 25)))
            y = int((height - side) * (0.5 + 0.4 * np.cos(place / 31)))
            picture[y : y + side, x : x + side] = ground[:side, :side]
            pixels = np.clip(picture, 0, 255).astype(np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode(None))
    return file.getvalue()


def decode_plainly(data: bytes, indices: tuple[int, ...]) -> Any:
    """Return frames as transformers' PyAV reader does: everything up to the last one."""
    import av
    import numpy as np

    wanted, frames = set(indices), []
    with av.open(io.BytesIO(data)) as container:
        container.streams.video[0].thread_count = 1
        for place, frame in enumerate(container.decode(video=0)):
            if place > indices[-1]:
                break
            if place in wanted:
                frames.append(frame.to_ndarray(format="rgb24"))
    return np.stack(frames)


class Clip:
    """One video on its way through both."""

    def __init__(self, engine: Any, videos: Any, data: bytes, num_frames: int) -> None:
        import torch

        from processors.types import ItemInput, MediaOptions, Modality

        self.engine, self.videos, self.data = engine, videos, data
        kwargs = {"size": SIZE, "num_frames": num_frames}
        self.item = ItemInput(Modality.VIDEO, (data,), MediaOptions(), kwargs, 0)
        self.plan = engine.plan(self.item)
        self.indices = tuple(self.plan.state["frame_indices"])
        self.outputs = {
            spec.name: torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype))
            for spec in self.plan.tensors
        }
        self.frames = decode_plainly(data, self.indices)

    def decode(self) -> Any:
        from processors.decode import decode_frames
        from processors.types import DecodeLimits

        options, limits = self.item.options, DecodeLimits()
        return decode_frames(self.data, self.indices, options=options, limits=limits).frames

    def run(self) -> None:
        self.engine.process(self.item, self.engine.plan(self.item), self.outputs)

    def call(self) -> Any:
        return self._call(self.videos, self.frames)

    def run_plainly(self) -> Any:
        import safetensors.torch

        features = self._call(self.videos, decode_plainly(self.data, self.indices))
        names = [name for name in self.outputs if name in features]
        return safetensors.torch.save({name: features[name] for name in names})

    def kernel_run(self, kernel: Any) -> None:
        arguments = {"size": SIZE, "do_sample_frames": False, "video_metadata": [self._metadata()]}
        names = [name for name in self.outputs if name != "second_per_grid_ts"]
        if not kernel.run(self.frames, arguments, {n: self.outputs[n] for n in names}):
            raise SystemExit("the kernel did not take the clip")

    def check(self) -> None:
        import numpy as np
        import torch

        if not np.array_equal(self.frames, self.decode()):
            raise SystemExit("frames differ")
        self.run()
        for name, value in self.call().items():
            if isinstance(value, torch.Tensor) and not torch.equal(value, self.outputs[name]):
                raise SystemExit(f"{name} differs")

    def _call(self, videos: Any, frames: Any) -> Any:
        return videos(
            videos=[frames],
            size=SIZE,
            do_sample_frames=False,
            video_metadata=[self._metadata()],
            return_tensors="pt",
        )

    def _metadata(self) -> dict[str, Any]:
        count = self.plan.source.num_frames
        height, width = self.frames.shape[1:3] if hasattr(self, "frames") else (0, 0)
        return {
            "total_num_frames": count, "fps": float(FPS), "duration": count / FPS,
            "width": width, "height": height, "frames_indices": list(self.indices),
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="no long clips")
    parser.add_argument("--out", type=Path, default=Path("bench/results/video.json"))
    options = parser.parse_args()
    restart_with_environment()
    import torch
    from transformers import AutoProcessor

    from processors.engine import Engine
    from processors.fast import find_kernel
    from processors.types import DecodeLimits, ModelSpec
    from tests.helpers.model_zoo import build_model

    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        path = build_model("qwen2_5_vl", Path(directory) / "model")
        engine = Engine(ModelSpec("qwen2_5_vl", str(path)), DecodeLimits())
        videos = AutoProcessor.from_pretrained(path).video_processor
        kernel = find_kernel(videos)
        for gop in (60, 250):
            data = encode(10, 1280, 720, gop)
            for num_frames in (4, 20):
                clip = Clip(engine, videos, data, num_frames)
                clip.check()
                sides = {
                    "hf_decode": lambda c=clip: decode_plainly(c.data, c.indices),
                    "decode": clip.decode,
                    "hf_process": clip.call,
                    "process": lambda c=clip: c.kernel_run(kernel),
                    "hf": clip.run_plainly,
                    "ours": clip.run,
                }
                times = take_turns(sides, options.rounds)
                what = f"10 s, GOP {gop}, {num_frames} frames"
                pairs = (("decode", "hf_decode"), ("process", "hf_process"), ("whole", "hf"))
                for name, over in pairs:
                    under = "ours" if name == "whole" else name
                    both = {side: times[side] for side in (over, under)}
                    rows.append(row(f"{what}, {name}", both, over, under))
        for seconds in () if options.quick else (10, 60, 600):
            clip = Clip(engine, videos, encode(seconds, 320, 180, 250), min(seconds, 300))
            clip.check()
            times = take_turns({"hf": clip.run_plainly, "ours": clip.run}, 3)
            rows.append(
                row(f"{seconds} s, 320x180, {len(clip.indices)} frames", times, "hf", "ours")
            )
    write(options.out, rows, options.rounds)


if __name__ == "__main__":
    main()
