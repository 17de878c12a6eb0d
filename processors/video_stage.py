"""Videos: frames chosen and planned from the header, decoded and processed one video at a time."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch

from processors import decode, hf
from processors.audio_stage import AudioStage
from processors.context import Fill, Maker, Outcome, StageContext
from processors.decode import check_modality, decode_image, probe
from processors.decode.buffers import empty_pixels
from processors.errors import InvalidRequestError, MediaTooLargeError
from processors.features import without_compact, write_tensors
from processors.image_stage import make_empty, size_of
from processors.sampling import Selection, select_frames, thin
from processors.stage import Stage
from processors.types import ItemInput, ItemPlan, MediaInfo, Modality, ProcessReport

_LEARN_SHAPES = ((4, 3, 252, 336), (8, 3, 308, 224))


class VideoStage(Stage):
    """Videos by their container, or given as a list of frames."""

    modality: ClassVar[Modality] = Modality.VIDEO

    def __init__(self, context: StageContext, audio_stage: Stage | None = None) -> None:
        super().__init__(context)
        takes_audio = hf.takes_audio_in_video(self.model.processor)
        self._audio_stage: AudioStage | None = None
        if takes_audio and isinstance(audio_stage, AudioStage):
            self._audio_stage = audio_stage
        self.learn([partial(_empty_clip, shape, _at_two_fps(shape[0])) for shape in _LEARN_SHAPES])
        self.find_kernel()

    def plan(self, item: ItemInput) -> ItemPlan:
        """Choose frames by the header and plan what they become.

        Raises:
            MediaDecodeError, UnsupportedMediaTypeError, MediaTooLargeError: From the header, or if
                the frames or features would be too large.
            InvalidRequestError: If the processor does not take the size or a keyword argument, or
                the frames of a list differ in size.
            PromptTooLongError: If the video would become too many tokens.
        """
        kwargs = self.effective(item)
        if len(item.data) == 1:
            info = probe(item.data[0], limits=self.limits, prefer=Modality.VIDEO)
            check_modality(info, Modality.VIDEO)
            selection = select_frames(
                self.part,
                info,
                kwargs,
                self.merged(kwargs)["videos_kwargs"],
                item.options,
                self.limits,
                self.context.spec.video_fps,
            )
        else:
            info, selection = self._probe_list(item, kwargs)
        return self._plan_selection(item, info, selection, kwargs)

    def process(
        self, item: ItemInput, plan: ItemPlan, outputs: Mapping[str, torch.Tensor]
    ) -> ProcessReport:
        """Decode the planned frames and process them into preallocated tensors.

        Raises:
            MediaDecodeError, MediaTooLargeError: From decoding.
            FramesMissing: If fewer frames decode than planned.
            PlanMismatchError: If the result is not what was planned.
        """
        start = time.perf_counter()
        kwargs = self.effective(item)
        selection = _selection_of(plan)
        frames, decoded_indices = self._decode(item, selection)
        if decoded_indices != selection.frame_indices:
            raise self._missing(item, plan, replace(selection, frame_indices=decoded_indices))
        decoded = time.perf_counter()
        pixels = torch.from_numpy(frames).permute(0, 3, 1, 2).to(self.context.spec.device)
        clip = _clip(pixels, selection)
        kernel = self._execute_clip(plan, clip, self.merged(kwargs), outputs, item.num_threads)
        done = time.perf_counter()
        return ProcessReport((decoded - start) * 1e3, (done - decoded) * 1e3, kernel=kernel)

    def call(self, processor: hf.HfObject, media: Sequence[Any], merged: hf.Merged) -> hf.Processed:
        """See `Stage.call`; media are `hf.Clip`s."""
        return hf.process_videos(processor, media, merged)

    def warm_up(self) -> None:
        """Process a few small frames."""
        clip = _empty_clip(_LEARN_SHAPES[0], _at_two_fps(_LEARN_SHAPES[0][0]), "zeros")
        self.run_real(clip, self.merged(self.server_kwargs))

    def _plan_selection(
        self, item: ItemInput, info: MediaInfo, selection: Selection, kwargs: Mapping[str, Any]
    ) -> ItemPlan:
        height, width = size_of(info)
        count = len(selection.frame_indices)
        if count * height * width > self.limits.max_pixels:
            raise MediaTooLargeError(
                f"The {count} frames hold more than {self.limits.max_pixels} pixels; ask for fewer "
                "with 'max_frames', 'num_frames' or 'fps'."
            )
        state = {
            "frame_indices": selection.frame_indices,
            "num_frames": selection.num_frames,
            "fps": selection.fps,
            "duration_s": selection.duration_s,
        }
        if self._wants_audio(item, info) and self._audio_stage is not None:
            state["num_audio_samples"] = self._audio_stage.count_samples(item, info)
        key = (height, width, tuple(state.values()), json.dumps(kwargs, sort_keys=True))
        make = partial(_empty_clip, (count, 3, height, width), selection)
        what = f"a video of {count} frames of {width} x {height} pixels"
        shape = self.shape_of(key, lambda: self._run_empty(make, kwargs, what, state))
        is_exact = (info.exact or len(item.data) > 1) and not self.depends_on_data()
        base = ItemPlan(self.modality, info, None, 0, None, (), exact=is_exact, state=state)
        plan = self.item_plan(item, shape, base, kwargs)
        # With its sound a video goes through the plain processor alone.
        return without_compact(plan) if "num_audio_samples" in state else plan

    def _run_empty(
        self,
        make: Maker,
        kwargs: Mapping[str, Any],
        what: str,
        state: Mapping[str, Any],
    ) -> tuple[Outcome, bool]:
        num_samples = state.get("num_audio_samples")
        if num_samples is None:
            return self.run_empty(make, kwargs, what)
        merged = self.merged(kwargs)
        silence = np.zeros(num_samples, np.float32)
        try:
            clip = make("meta" if self.plans_on_meta else "zeros")
            return self._run_with_audio(self.model.planner, clip, silence, merged), (
                self.plans_on_meta
            )
        except hf.HF_ERRORS as exc:
            raise self.refuse(kwargs, what) from exc

    def _execute_clip(
        self,
        plan: ItemPlan,
        clip: hf.Clip,
        merged: hf.Merged,
        outputs: Mapping[str, torch.Tensor],
        num_threads: int,
    ) -> str:
        num_samples = plan.state.get("num_audio_samples")
        if num_samples is None:
            return self.execute(clip, merged, plan, outputs, num_threads).kernel
        # Only the number of samples enters the text; the waveform is the audio item's.
        silence = np.zeros(num_samples, np.float32)
        outcome = self._run_with_audio(self.model.processor, clip, silence, merged)
        self.check_executed(outcome, plan)
        write_tensors(outcome.tensors, plan.tensors, outputs)
        return "plain"

    def _run_with_audio(
        self, processor: hf.HfObject, clip: hf.Clip, waveform: np.ndarray, merged: hf.Merged
    ) -> Outcome:
        if self._audio_stage is None:
            return self.run(processor, [clip], merged)
        audio = self._audio_stage.features_of(waveform)
        return self.finish(*hf.process_videos(processor, [clip], merged, (waveform, audio)))

    def _wants_audio(self, item: ItemInput, info: MediaInfo) -> bool:
        return bool(item.settings.get("use_audio_in_video")) and info.has_audio

    def _probe_list(
        self, item: ItemInput, kwargs: Mapping[str, Any]
    ) -> tuple[MediaInfo, Selection]:
        infos = [probe(data, limits=self.limits, prefer=Modality.IMAGE) for data in item.data]
        for info in infos:
            check_modality(info, Modality.IMAGE)
        if len({size_of(info) for info in infos}) > 1:
            raise InvalidRequestError("The frames of a video have one size.")
        fps = float(kwargs.get("fps") or self.context.spec.video_fps)
        count = len(infos)
        most = min(item.options.max_frames or self.limits.max_frames, self.limits.max_frames)
        chosen = thin(list(range(count)), most)
        info = replace(
            infos[0],
            kind=Modality.VIDEO,
            nbytes=sum(info.nbytes for info in infos),
            num_frames=count,
            fps=fps,
            seconds=count / fps,
            orientation=None,
        )
        return info, Selection(tuple(chosen), count, fps, count / fps)

    def _decode(self, item: ItemInput, selection: Selection) -> tuple[np.ndarray, tuple[int, ...]]:
        if len(item.data) > 1:
            return self._decode_list(item, selection), selection.frame_indices
        wanted = tuple(dict.fromkeys(selection.frame_indices))
        video = decode.decode_frames(
            item.data[0],
            wanted,
            options=item.options,
            limits=self.limits,
            num_threads=item.num_threads,
        )
        if wanted == selection.frame_indices:
            return video.frames, tuple(video.indices)
        place = {index: place for place, index in enumerate(video.indices)}
        kept = tuple(index for index in selection.frame_indices if index in place)
        return video.frames[[place[index] for index in kept]], kept

    def _decode_list(self, item: ItemInput, selection: Selection) -> np.ndarray:
        """Decode frames that are pictures, each into its place; no more than one is held twice."""
        frames: np.ndarray | None = None
        for place, index in enumerate(selection.frame_indices):
            data, options = item.data[index], item.options
            frame = decode_image(data, options=options, limits=self.limits)[..., :3]
            if frames is None:
                frames = empty_pixels((len(selection.frame_indices), *frame.shape))
            if frame.shape != frames.shape[1:]:
                raise InvalidRequestError("The frames of a video have one size.")
            frames[place] = frame
        if frames is None:
            raise InvalidRequestError("A video has at least one frame.")
        return frames

    def _missing(self, item: ItemInput, plan: ItemPlan, selection: Selection) -> Exception:
        missing = len(_selection_of(plan).frame_indices) - len(selection.frame_indices)
        new_plan = self._plan_selection(item, plan.source, selection, self.effective(item))
        return self.replanned(
            new_plan, ("frames_missing", f"{missing} of the planned frames do not decode.")
        )


def _selection_of(plan: ItemPlan) -> Selection:
    state = plan.state
    return Selection(
        tuple(state["frame_indices"]), state["num_frames"], state["fps"], state["duration_s"]
    )


def _clip(frames: torch.Tensor, selection: Selection) -> hf.Clip:
    return hf.Clip(
        frames,
        selection.frame_indices,
        selection.num_frames,
        selection.fps,
        selection.duration_s,
    )


def _at_two_fps(count: int) -> Selection:
    return Selection(tuple(range(count)), count, 2.0, count / 2.0)


def _empty_clip(shape: tuple[int, ...], selection: Selection, fill: Fill) -> hf.Clip:
    return _clip(make_empty(shape, fill), selection)
