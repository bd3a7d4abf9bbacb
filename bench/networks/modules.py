"""Networks that no package offers as modules, written out small: the layers are those of the papers."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


def norm_conv(inputs: int, outputs: int, dilation: int = 1) -> nn.Sequential:
    """Build a 3x3 convolution with batch normalisation and ReLU."""
    conv = nn.Conv2d(inputs, outputs, 3, padding=dilation, dilation=dilation)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU())


class NestedU(nn.Module):
    """A residual U-block of U²-Net (Qin et al. 2020) of `depth` levels; the deepest has a dilated convolution."""

    def __init__(self, depth: int, inputs: int, middle: int, outputs: int) -> None:
        super().__init__()
        self.first = norm_conv(inputs, outputs)
        self.down = nn.ModuleList(norm_conv(middle if level else outputs, middle) for level in range(depth - 1))
        self.bottom = norm_conv(middle, middle, 2)
        self.up = nn.ModuleList(norm_conv(2 * middle, middle if level else outputs) for level in range(depth - 1))
        self.pool = nn.MaxPool2d(2, ceil_mode=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = first = self.first(x)
        levels = []
        for level, down in enumerate(self.down):
            x = down(self.pool(x) if level else x)
            levels.append(x)
        x = self.bottom(x)
        for up in reversed(self.up):
            skip = levels.pop()
            x = up(torch.cat([resized(x, skip), skip], 1))
        return x + first


class U2Net(nn.Module):
    """U²-Net of the small kind (U²-NetP), with its six side outputs fused to one mask."""

    def __init__(self, width: int = 64, middle: int = 16) -> None:
        super().__init__()
        depths = (7, 6, 5, 4, 4, 4)
        self.down = nn.ModuleList(NestedU(depth, width if at else 3, middle, width) for at, depth in enumerate(depths))
        self.up = nn.ModuleList(NestedU(depth, 2 * width, middle, width) for depth in depths[:-1])
        self.sides = nn.ModuleList(nn.Conv2d(width, 1, 3, padding=1) for _ in depths)
        self.fuse = nn.Conv2d(len(depths), 1, 1)
        self.pool = nn.MaxPool2d(2, ceil_mode=True)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        levels: list[torch.Tensor] = []
        for down in self.down:
            levels.append(down(self.pool(levels[-1]) if levels else image))
        x = levels.pop()
        sides = [self.sides[-1](x)]
        for up, side in zip(reversed(self.up), reversed(self.sides[:-1]), strict=True):
            skip = levels.pop()
            x = up(torch.cat([resized(x, skip), skip], 1))
            sides.append(side(x))
        return torch.sigmoid(self.fuse(torch.cat([resized(side, image) for side in sides], 1)))


def resized(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Resize planes bilinearly to the size of others."""
    return functional.interpolate(x, size=like.shape[2:], mode="bilinear", align_corners=False)


class VolumeUNet(nn.Module):
    """A 3-D U-Net (Çiçek et al. 2016) with instance normalisation and LeakyReLU, as nnU-Net trains."""

    def __init__(self, width: int = 16, depth: int = 3, classes: int = 3) -> None:
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        pairs = list(zip(widths, widths[1:], strict=False))
        self.first = self.block(1, width, 1)
        self.down = nn.ModuleList(self.block(fine, coarse, 2) for fine, coarse in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose3d(coarse, fine, 2, stride=2) for fine, coarse in pairs)
        self.join = nn.ModuleList(self.block(coarse, fine, 1) for fine, coarse in pairs)
        self.last = nn.Conv3d(width, classes, 1)

    @staticmethod
    def block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
        """Build two 3x3x3 convolutions, the first with a stride."""
        layers: list[nn.Module] = []
        for channels, step in ((inputs, stride), (outputs, 1)):
            norm = nn.InstanceNorm3d(outputs, affine=True)
            layers += [nn.Conv3d(channels, outputs, 3, step, 1), norm, nn.LeakyReLU()]
        return nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        levels = [self.first(x)]
        for down in self.down:
            levels.append(down(levels[-1]))
        x = levels.pop()
        for up, join in zip(reversed(self.up), reversed(self.join), strict=True):
            x = join(torch.cat([up(x), levels.pop()], 1))
        return self.last(x)


class CompactSuperResolution(nn.Module):
    """Real-ESRGAN's compact network (SRVGG; Wang et al. 2021): 3x3 convolutions with PReLU, then depth to space."""

    def __init__(self, width: int = 64, layers: int = 16, scale: int = 4) -> None:
        super().__init__()
        self.scale = scale
        body: list[nn.Module] = []
        for layer in range(layers + 1):
            body += [nn.Conv2d(width if layer else 3, width, 3, padding=1), nn.PReLU(width)]
        self.body = nn.Sequential(*body, nn.Conv2d(width, 3 * scale**2, 3, padding=1), nn.PixelShuffle(scale))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) + functional.interpolate(x, scale_factor=float(self.scale), mode="nearest")


class DenseSuperResolution(nn.Module):
    """ESRGAN's network (RRDB; Wang et al. 2018): residual blocks of densely connected convolutions."""

    def __init__(self, width: int = 64, growth: int = 32, blocks: int = 2) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(DenseBlock(width, growth) for _ in range(3 * blocks))
        self.up = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.last = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for at in range(0, len(self.blocks), 3):
            start = x
            for block in self.blocks[at : at + 3]:
                x = block(x)
            x = start + 0.2 * x
        for up in self.up:
            x = functional.leaky_relu(up(functional.interpolate(x, scale_factor=2.0, mode="nearest")), 0.2)
        return self.last(x)


class DenseBlock(nn.Module):
    """Five densely connected 3x3 convolutions with a scaled shortcut."""

    def __init__(self, width: int, growth: int) -> None:
        super().__init__()
        outputs = (growth, growth, growth, growth, width)
        self.layers = nn.ModuleList(
            nn.Conv2d(width + at * growth, each, 3, padding=1) for at, each in enumerate(outputs)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = [x]
        for layer in self.layers:
            found.append(functional.leaky_relu(layer(torch.cat(found, 1)), 0.2))
        return x + 0.2 * found[-1]


class ChannelNorm(nn.Module):
    """Layer normalisation of the channels of each pixel (LayerNorm2d)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        return (x - mean) / (variance + 1e-6).sqrt() * self.weight[:, None, None] + self.bias[:, None, None]


class GatedBlock(nn.Module):
    """NAFNet's block (Chen et al. 2022): depthwise convolution, a gate of two halves, channel attention."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        double = 2 * channels
        self.norms = nn.ModuleList(ChannelNorm(channels) for _ in range(2))
        self.widen = nn.ModuleList(nn.Conv2d(channels, double, 1) for _ in range(2))
        self.depthwise = nn.Conv2d(double, double, 3, padding=1, groups=double)
        self.attention = nn.Conv2d(channels, channels, 1)
        self.narrow = nn.ModuleList(nn.Conv2d(channels, channels, 1) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, two = self.depthwise(self.widen[0](self.norms[0](x))).chunk(2, 1)
        gated = one * two
        x = x + self.narrow[0](gated * self.attention(functional.adaptive_avg_pool2d(gated, 1)))
        one, two = self.widen[1](self.norms[1](x)).chunk(2, 1)
        return x + self.narrow[1](one * two)


class NAFNet(nn.Module):
    """NAFNet: a U-Net of gated blocks with strided convolutions down and depth to space up; it restores images."""

    def __init__(self, width: int = 32, down: tuple[int, ...] = (1, 1, 2), middle: int = 2) -> None:
        super().__init__()
        widths = [width << level for level in range(len(down) + 1)]
        self.first, self.last = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.encoders = nn.ModuleList(
            nn.Sequential(*(GatedBlock(each) for _ in range(count))) for each, count in zip(widths, down, strict=False)
        )
        self.down = nn.ModuleList(nn.Conv2d(each, 2 * each, 2, 2) for each in widths[:-1])
        self.middle = nn.Sequential(*(GatedBlock(widths[-1]) for _ in range(middle)))
        self.up = nn.ModuleList(
            nn.Sequential(nn.Conv2d(2 * each, 4 * each, 1, bias=False), nn.PixelShuffle(2)) for each in widths[:-1]
        )
        self.decoders = nn.ModuleList(GatedBlock(each) for each in widths[:-1])

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x, skips = self.first(image), []
        for encoder, down in zip(self.encoders, self.down, strict=True):
            skips.append(encoder(x))
            x = down(skips[-1])
        x = self.middle(x)
        for up, decoder in zip(reversed(self.up), reversed(self.decoders), strict=True):
            x = decoder(up(x) + skips.pop())
        return self.last(x) + image


class Snake(nn.Module):
    """The activation x + sin²(a·x) / a of vocoders (Ziyin et al. 2020)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, channels, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.sin(self.scale * x).pow(2) / (self.scale + 1e-9)


class Vocoder(nn.Module):
    """A vocoder as HiFi-GAN (Kong et al. 2020) with Snake: mel spectrum (N, 80, frames) to (N, 1, 256·frames)."""

    def __init__(self, width: int = 256, strides: tuple[int, ...] = (8, 8, 2, 2)) -> None:
        super().__init__()
        self.first = nn.Conv1d(80, width, 7, padding=3)
        widths = [width >> level for level in range(len(strides) + 1)]
        self.up = nn.ModuleList(
            nn.ConvTranspose1d(coarse, fine, 2 * step, step, step // 2)
            for coarse, fine, step in zip(widths, widths[1:], strides, strict=False)
        )
        self.activations = nn.ModuleList(Snake(each) for each in widths)
        self.stages = nn.ModuleList(
            nn.ModuleList(DilatedResidual(fine, kernel) for kernel in (3, 7, 11)) for fine in widths[1:]
        )
        self.last = nn.Conv1d(widths[-1], 1, 7, padding=3)
        self.last.gain = 0.05  # residuals grow; tanh must not saturate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for up, activation, stage in zip(self.up, self.activations, self.stages, strict=False):
            x = up(activation(x))
            x = sum(block(x) for block in stage) / len(stage)
        return torch.tanh(self.last(self.activations[-1](x)))


class DilatedResidual(nn.Module):
    """Three pairs of Snake and a dilated convolution of a signal, each with a shortcut."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                Snake(channels),
                nn.Conv1d(channels, channels, kernel, padding=dilation * (kernel // 2), dilation=dilation),
            )
            for dilation in (1, 3, 5)
        )
        for _, conv in self.layers:
            conv.gain = 0.3  # of a sum of shortcuts, which otherwise grows

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


class Separator(nn.Module):
    """A source separator as Demucs (Défossez et al. 2019): strided convolutions of a signal with GroupNorm and GLU."""

    def __init__(self, width: int = 48, depth: int = 5, sources: int = 4) -> None:
        super().__init__()
        widths = [width << level for level in range(depth)]
        self.down = nn.ModuleList(
            nn.Sequential(
                nn.Conv1d(inputs, outputs, 8, 4, 2), nn.GroupNorm(4, outputs), nn.GELU(),
                nn.Conv1d(outputs, 2 * outputs, 1), nn.GroupNorm(4, 2 * outputs), nn.GLU(1),
            )
            for inputs, outputs in zip((2, *widths), widths, strict=False)
        )  # fmt: skip
        self.rewrite = nn.ModuleList(
            nn.Sequential(nn.Conv1d(each, 2 * each, 3, padding=1), nn.GroupNorm(4, 2 * each), nn.GLU(1))
            for each in widths
        )
        self.up = nn.ModuleList(
            nn.ConvTranspose1d(inputs, outputs, 8, 4, 2)
            for inputs, outputs in zip(widths, (2 * sources, *widths), strict=False)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for down in self.down:
            x = down(x)
            skips.append(x)
        x = torch.zeros_like(x)
        for up, rewrite in zip(reversed(self.up), reversed(self.rewrite), strict=True):
            x = up(rewrite(x + skips.pop()))
            if skips:
                x = functional.gelu(x)
        return x


class ArcFace(nn.Module):
    """The embedding network of ArcFace (Deng et al. 2019): an improved residual network of 18 layers with PReLU."""

    def __init__(self, widths: tuple[int, ...] = (64, 128, 256, 512), size: int = 512) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.PReLU(64))
        blocks = []
        for inputs, outputs in zip((64, *widths), widths, strict=False):
            blocks += [FaceBlock(inputs, outputs, 2), FaceBlock(outputs, outputs, 1)]
        self.blocks = nn.Sequential(*blocks, nn.BatchNorm2d(widths[-1]))
        self.embed = nn.Linear(widths[-1] * 7 * 7, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.embed(self.blocks(self.first(x)).flatten(1))


class FaceBlock(nn.Module):
    """A residual block: normalisation before the first convolution, PReLU between both."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(inputs),
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.PReLU(outputs),
            nn.Conv2d(outputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut = shortcut if stride > 1 or inputs != outputs else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) + self.shortcut(x)
