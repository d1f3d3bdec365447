"""DCGAN: a generator and a discriminator that train against each other, with an optimizer each (2015)."""

from __future__ import annotations

import itertools

import torch
from torch import nn

from memfit.errors import UsageError
from memfit.job.data.torch_feeds import feed_images, to_shape
from memfit.job.recipes.torch_optimizers import make_optimizer
from memfit.job.recipes.torch_step import update_kind
from memfit.job.training import Training


class Generator(nn.Module):
    """From noise to an image of 32 x 32."""

    def __init__(self, noise: int, width: int) -> None:
        super().__init__()
        sizes = [noise, width * 4, width * 2, width]
        layers: list[nn.Module] = []
        for index, (inside, outside) in enumerate(itertools.pairwise(sizes)):
            stride, padding = (1, 0) if index == 0 else (2, 1)
            layers += [nn.ConvTranspose2d(inside, outside, 4, stride, padding), nn.BatchNorm2d(outside), nn.ReLU(True)]
        self.layers = nn.Sequential(*layers, nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Tanh())

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        """Images."""
        return self.layers(noise)


class Discriminator(nn.Module):
    """From an image to how real it looks."""

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = [3, width, width * 2, width * 4]
        layers: list[nn.Module] = []
        for inside, outside in itertools.pairwise(sizes):
            layers += [nn.Conv2d(inside, outside, 4, 2, 1), nn.LeakyReLU(0.2, True)]
        self.layers = nn.Sequential(*layers, nn.Conv2d(width * 4, 1, 4))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """One score per image."""
        return self.layers(images).flatten()


def build_gan(
    *,
    batch_size: int = 64,
    noise: int = 100,
    width: int = 64,
    optimizer: str = "adam",
    lr: float = 1e-3,
    data: str | None = None,
    device: str = "cpu",
) -> Training:
    """One step updates the discriminator, then the generator; `data` is an image set, resized to 32 x 32."""
    generator, discriminator = Generator(noise, width).to(device), Discriminator(width).to(device)
    of_generator = make_optimizer(optimizer, generator, lr)
    of_discriminator = make_optimizer(optimizer, discriminator, lr)
    if update_kind(of_generator) != "plain":
        hint = "an optimizer whose step takes no closure"
        raise UsageError("two networks against each other have no loss to compute again", found=optimizer, hint=hint)
    real = torch.randn(batch_size, 3, 32, 32, device=device)
    judge = nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(batch_size, device=device), torch.zeros(batch_size, device=device)
    training = Training(batch=(real, ones))

    def step() -> None:
        made = generator(torch.randn(batch_size, noise, 1, 1, device=device))
        of_discriminator.zero_grad()
        (judge(discriminator(training.batch[0]), ones) + judge(discriminator(made.detach()), zeros)).backward()
        of_discriminator.step()
        of_generator.zero_grad()
        fooled = judge(discriminator(made), ones)
        if training.on_loss is not None:
            training.on_loss(fooled)
        fooled.backward()
        of_generator.step()

    training.step = step
    return training if data is None else feed_images(training, data, batch_size, shape=to_shape(3, 32))
