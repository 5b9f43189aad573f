"""K users' adapters in one packed step, and in K steps one after the other: seconds and memory.

    PYTHONPATH=. python bench/trainer/packed.py --users 1 4 8
    PYTHONPATH=. python bench/trainer/packed.py --model qwen3-0.6b --device cuda --users 1 8 32

A step is what a hint teaches: the base scores each user's replies under the hint, the user's
adapter (rank 8, all linear layers) without it; reverse KL over the whole vocabulary, the mean of
the user's own tokens, the user's own clipping and Adam. Packed, all users' replies meet the frozen
weights in one product, and each user's adapter in one of a batch of products.

Weights and ids are random: time hangs on shapes. Both ways start alike, take turns and must agree
on each user's loss. Seconds are the processor's, which other work changes least, or a GPU's by the
wall. A ratio is of one pair of turns, above 1 where packed needs less.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bench.trainer.batch import SPREAD
from bench.trainer.report import ratios
from bench.trainer.shapes import SHAPES, random_model
from training.config import TrainConfig
from training.forward import backward_in_chunks
from training.logprobs import reverse_kl

LOSS_RTOL = {"cpu": 1e-4, "cuda": 2e-2}  # fp32, bf16


@dataclass
class Seat:
    """Which pack of adapters the model wears; None is the base alone."""

    pack: int | None = None


class PackedLinear(nn.Module):
    """A frozen linear layer and packs of adapters, `sizes` users in each.

    In a pack of K the rows of x (B, T, I) are the users' in order, as many of each:
    y = W x + (alpha / r) B_k A_k x.
    """

    def __init__(self, linear: nn.Linear, sizes: Sequence[int], seat: Seat) -> None:
        super().__init__()
        rank, (outputs, inputs) = TrainConfig().rank, linear.weight.shape
        self.linear, self.seat = linear, seat
        self.scale = TrainConfig().alpha / rank
        device = linear.weight.device
        self.packs_A = nn.ParameterList(torch.zeros(k, rank, inputs, device=device) for k in sizes)
        self.packs_B = nn.ParameterList(torch.zeros(k, outputs, rank, device=device) for k in sizes)

    def forward(self, x_BTI: Tensor) -> Tensor:
        y_BTO: Tensor = self.linear(x_BTI)
        if self.seat.pack is None:
            return y_BTO
        a_KRI, b_KOR = self.packs_A[self.seat.pack], self.packs_B[self.seat.pack]
        x_KNI = x_BTI.reshape(len(a_KRI), -1, x_BTI.shape[-1])
        adapted_KNO: Tensor = x_KNI @ a_KRI.mT @ b_KOR.mT
        return y_BTO + self.scale * adapted_KNO.view_as(y_BTO)


@dataclass(frozen=True, kw_only=True)
class Replies:
    """Each user's replies, (K, N, T) ids: under the question, and under question and hint."""

    plain_KNT: Tensor
    hinted_KNT: Tensor
    length: int  # tokens of a reply, the last of each row

    def of(self, user: int) -> Replies:
        one = slice(user, user + 1)
        return Replies(
            plain_KNT=self.plain_KNT[one], hinted_KNT=self.hinted_KNT[one], length=self.length
        )


def random_replies(
    users: int, replies: int, *, prompt: int, hint: int, length: int, vocabulary: int, device: str
) -> Replies:
    def ids(tokens: int) -> Tensor:
        return torch.randint(3, vocabulary, (users, replies, tokens), device=device)

    question, said, reply = ids(prompt), ids(hint), ids(length)
    return Replies(
        plain_KNT=torch.cat([question, reply], dim=-1),
        hinted_KNT=torch.cat([question, said, reply], dim=-1),
        length=length,
    )


class Packs:
    """One model with the same K adapters twice: as one pack, and as K packs of one."""

    def __init__(self, model: Any, users: int) -> None:
        self.model, self.users, self.seat = model.eval().requires_grad_(False), users, Seat()
        self.layers: list[PackedLinear] = []
        self.device = next(model.parameters()).device.type
        sizes = [users, *[1] * users]
        for parent in list(model.model.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, nn.Linear):
                    self.layers.append(PackedLinear(child, sizes, self.seat))
                    setattr(parent, name, self.layers[-1])
        with torch.no_grad():
            for layer in self.layers:
                for packs, std in ((layer.packs_A, 0.02), (layer.packs_B, SPREAD)):
                    packs[0].normal_(std=std)
                    for user in range(users):
                        packs[1 + user].copy_(packs[0][user : user + 1])
        self.optimizers = [self._adam(pack) for pack in range(len(sizes))]

    def _adam(self, pack: int) -> torch.optim.AdamW:
        numbers = TrainConfig()
        return torch.optim.AdamW(
            self.tensors(pack),
            lr=numbers.lr,
            betas=(numbers.beta1, numbers.beta2),
            weight_decay=numbers.weight_decay,
        )

    def tensors(self, pack: int) -> list[Tensor]:
        return [side[pack] for layer in self.layers for side in (layer.packs_A, layer.packs_B)]

    def packed(self, replies: Replies) -> Tensor:
        """All users in one step. Each one's loss before it, (K,)."""
        return self._step(0, replies)

    def one_after_the_other(self, replies: Replies) -> Tensor:
        return torch.cat([self._step(1 + k, replies.of(k)) for k in range(self.users)])

    def _step(self, pack: int, replies: Replies) -> Tensor:
        users, count, _ = replies.plain_KNT.shape
        tokens = count * replies.length  # of each user
        losses_K = torch.zeros(users, device=self.device)
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            with torch.no_grad():
                teacher_NH = self._hidden(None, replies.hinted_KNT, replies.length)

            def loss_of(policy_NH: Tensor, chunk: slice) -> Tensor:
                with torch.no_grad():
                    teacher_NV = self.model.lm_head(teacher_NH[chunk])
                kl_N = reverse_kl(self.model.lm_head(policy_NH), teacher_NV) / tokens
                place_N = torch.arange(chunk.start, chunk.start + len(kl_N), device=self.device)
                losses_K.index_add_(0, place_N // tokens, kl_N.detach())
                return kl_N.sum()

            backward_in_chunks(self._hidden(pack, replies.plain_KNT, replies.length), loss_of)
        clip_each(self.tensors(pack), TrainConfig().grad_clip)
        self.optimizers[pack].step()
        self.optimizers[pack].zero_grad()
        return losses_K

    def _hidden(self, pack: int | None, ids_KNT: Tensor, length: int) -> Tensor:
        """States that predict the replies' tokens, user by user, (K N length, H)."""
        self.seat.pack = pack
        ids_BT = ids_KNT.flatten(0, 1)
        states_BTH: Tensor = self.model.model(input_ids=ids_BT, use_cache=False).last_hidden_state
        return states_BTH[:, -length - 1 : -1].flatten(0, 1)


@torch.no_grad()
def clip_each(tensors: Sequence[Tensor], limit: float) -> None:
    """Each user's own gradient, of norm `limit` at most; tensors are (K, …)."""
    grads = [tensor.grad for tensor in tensors if tensor.grad is not None]
    norm_K = torch.stack([grad.flatten(1).norm(dim=1) for grad in grads]).norm(dim=0)
    scale_K = (limit / (norm_K + 1e-6)).clamp(max=1)
    for grad in grads:
        grad.mul_(scale_K.view(-1, 1, 1))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--users", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--model", choices=SHAPES, default="smollm2")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--replies", type=int, default=4, help="of each user")
    parser.add_argument("--prompt-tokens", type=int, default=40)
    parser.add_argument("--hint-tokens", type=int, default=40)
    parser.add_argument("--reply-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for users in args.users:
        compare(users, args)


def compare(users: int, args: argparse.Namespace) -> None:
    """Prints the seconds of both ways."""
    torch.manual_seed(users)
    model = random_model(args.model, args.device)
    packs = Packs(model, users)
    both = (packs.packed, packs.one_after_the_other)
    pairs, peaks = [], [0.0, 0.0]
    for _ in range(args.rounds + 1):
        replies = random_replies(
            users,
            args.replies,
            prompt=args.prompt_tokens,
            hint=args.hint_tokens,
            length=args.reply_tokens,
            vocabulary=model.config.vocab_size,
            device=args.device,
        )
        (ours, losses_K, first), (theirs, wanted_K, second) = (timed(f, replies) for f in both)
        torch.testing.assert_close(losses_K, wanted_K, rtol=LOSS_RTOL[args.device], atol=1e-6)
        pairs.append((theirs, ours))
        peaks = [max(peaks[0], first), max(peaks[1], second)]
    del pairs[0]  # the first one warms up
    old, new = zip(*pairs, strict=True)
    memory = f"; GiB at most: {peaks[0]:.1f} packed, {peaks[1]:.1f}" if peaks[0] else ""
    print(
        f"{args.model}, {users} users of {args.replies} replies: {statistics.median(old):.2f} s one"
        f" after the other, {statistics.median(new):.2f} s packed; {ratios(old, new)} times as fast"
        f"{memory}",
        flush=True,
    )


def timed(step: Callable[[Replies], Tensor], replies: Replies) -> tuple[float, Tensor, float]:
    """Seconds, the losses, and a GPU's peak in GiB, 0 on a CPU."""
    on_gpu = replies.plain_KNT.is_cuda
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
    clock = time.perf_counter if on_gpu else time.process_time
    began = clock()
    losses_K = step(replies)
    if on_gpu:
        torch.cuda.synchronize()
    seconds = clock() - began
    return seconds, losses_K, torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0


if __name__ == "__main__":
    main()
