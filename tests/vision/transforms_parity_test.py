"""Transforms of batches against torchvision.transforms.v2 on float tensors, picture by picture."""

import os
import tempfile
import unittest

from torchvision_peer import torchvision

import numpy as np
import torch
from PIL import Image

from vision_probe import ask, write_icons

F = torchvision.transforms.v2.functional
MEAN, STD = [0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]


def pictures(n, height, width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(n, 3, height, width, generator=generator)
    images[0] = 0.5  # one color: hue and saturation divide by 0
    images[1] = (images[1] * 4).floor() / 4  # equal channels here and there
    images[2] = images[2].round()  # black, white and pure colors
    return images


class TransformsParity(unittest.TestCase):
    def compare(self, images, wanted, **question):
        """`wanted(picture, i)`: what torchvision makes of the i-th picture."""
        with tempfile.TemporaryDirectory() as directory:
            source, output = os.path.join(directory, "in"), os.path.join(directory, "out")
            images.numpy().tofile(source)
            answer = ask([dict(ask="transform", input=source, output=output, shape=list(images.shape), **question)])[0]
            self.assertFalse(isinstance(answer, Exception), answer)
            made = torch.from_numpy(np.fromfile(output, np.float32).reshape(answer))
        peer = torch.stack([wanted(image, i) for i, image in enumerate(images)])
        self.assertEqual(peer.shape, made.shape)
        self.assertLessEqual((peer - made).abs().max().item(), 1e-6)

    def test_resize(self):
        for size in ((32, 32), (48, 20), (7, 9), (224, 224), (1, 1)):
            for antialias in (True, False):
                with self.subTest(size=size, antialias=antialias):
                    self.compare(
                        pictures(4, 32, 40),
                        lambda image, _: F.resize(image, list(size), antialias=antialias),
                        name="resize",
                        height=size[0],
                        width=size[1],
                        antialias=antialias,
                    )

    def test_crop_with_padding(self):
        draw = np.random.default_rng(0)
        for padding, mode, fill in (
            (0, "constant", 0),
            (4, "constant", 0),
            (9, "constant", 0),
            (4, "edge", 0),
            (31, "reflect", 0),
            (32, "symmetric", 0),
            (7, "constant", [0.25, 0, 1]),
        ):
            positions = [[int(draw.integers(0, 2 * padding + 1)), int(draw.integers(0, 2 * padding + 1))] for _ in range(12)]
            with self.subTest(padding=padding, mode=mode):
                self.compare(
                    pictures(12, 32, 32),
                    lambda image, i: F.crop(F.pad(image, [padding], fill=fill, padding_mode=mode), *positions[i], 32, 32),
                    name="crop",
                    padding=padding,
                    mode=mode,
                    fill=fill or [0, 0, 0],
                    positions=positions,
                    height=32,
                    width=32,
                )

    def test_horizontal_flip(self):
        flips = [0, 1, 1, 0, 1]
        self.compare(pictures(5, 8, 9), lambda image, i: F.horizontal_flip(image) if flips[i] else image, name="horizontal_flip", numbers=flips)

    def test_rotation(self):
        draw = np.random.default_rng(1)
        angles = [0.0, 90.0, 180.0, 270.0, -45.0, 360.0] + list(draw.uniform(-180, 180, 60))
        for height, width in ((32, 32), (21, 40)):
            for bilinear in (False, True):
                mode = torchvision.transforms.InterpolationMode.BILINEAR if bilinear else torchvision.transforms.InterpolationMode.NEAREST
                # A quarter turn of a picture that is not square is no special case of the peer's either.
                chosen = angles if height == width else [angle for angle in angles if angle % 90]
                with self.subTest(width=width, bilinear=bilinear):
                    self.compare(
                        pictures(len(chosen), height, width),
                        lambda image, i: F.rotate(image, chosen[i], mode),
                        name="rotate",
                        numbers=chosen,
                        bilinear=bilinear,
                    )

    def test_colors(self):
        draw = np.random.default_rng(2)
        for name in ("adjust_brightness", "adjust_contrast", "adjust_saturation"):
            factors = [0.0, 1.0, 1.7] + list(draw.uniform(0, 2, 30))
            with self.subTest(name):
                self.compare(pictures(33, 16, 16), lambda image, i: getattr(F, name)(image, factors[i]), name=name, numbers=factors)
        factors = [0.0, 0.5, -0.5] + list(draw.uniform(-0.5, 0.5, 30))
        self.compare(pictures(33, 16, 16), lambda image, i: F.adjust_hue(image, factors[i]), name="adjust_hue", numbers=factors)

    def test_normalize(self):
        self.compare(pictures(3, 8, 8), lambda image, _: F.normalize(image, MEAN, STD), name="normalize", mean=MEAN, std=STD)

    def test_mixup_and_cutmix(self):
        images, labels = pictures(6, 12, 16), torch.tensor([0, 3, 1, 1, 2, 0])
        v2 = torchvision.transforms.v2
        for share in (0.0, 0.3, 1.0):
            peer = v2.MixUp(num_classes=4).transform(images, dict(labels=labels, batch_size=6, lam=share))
            self.compare(images, lambda _, i: peer[i], **{"name": "mixup", "lambda": share})
        for top, left, bottom, right in ((0, 0, 12, 16), (3, 5, 9, 6), (4, 4, 4, 9)):
            params = dict(labels=labels, batch_size=6, box=(left, top, right, bottom), lam_adjusted=0.5)
            cut = v2.CutMix(num_classes=4).transform(images, params)
            self.compare(images, lambda _, i: cut[i], name="cutmix", box=[top, left, bottom, right])

    def test_what_cannot_be_is_an_error(self):
        images = pictures(3, 8, 8)
        with tempfile.TemporaryDirectory() as directory:
            source = os.path.join(directory, "in")
            images.numpy().tofile(source)
            base = dict(ask="transform", input=source, output=os.path.join(directory, "out"), shape=[3, 3, 8, 8])
            cases = [
                (dict(name="adjust_hue", numbers=[0, 0, 0.6]), "0.6"),
                (dict(name="adjust_contrast", numbers=[1, 1, -1]), "-1"),
                (dict(name="rotate", numbers=[1], bilinear=False), "1 parameters for 3 pictures"),
                (dict(name="crop", padding=1, positions=[[0, 0], [0, 0], [0, 3]], height=8, width=8), "not inside"),
                (dict(name="cutmix", box=[0, 0, 9, 8]), "not inside"),
                (dict(name="resize", height=0, width=4, antialias=True), "4 x 0"),
                (dict(name="normalize", mean=MEAN, std=[1, 0, 1]), "deviation is 0"),
            ]
            for (question, wanted), answer in zip(cases, ask([base | question for question, _ in cases]), strict=True):
                self.assertIsInstance(answer, Exception, question)
                self.assertIn(wanted, str(answer))


class BatchesOfPictures(unittest.TestCase):
    """From files to batches: the same parameters in torchvision's functions, in its order."""

    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.paths = write_icons(self.directory.name, each=10)["train"]

    def batches(self, transforms, samples, workers=0, epoch=3, seed=7, batch_size=4, **more):
        output = os.path.join(self.directory.name, f"out{workers}")
        answer, drawn = ask(
            [
                dict(
                    ask="batches",
                    directory=self.directory.name,
                    split="train",
                    transforms=transforms,
                    seed=seed,
                    epoch=epoch,
                    samples=samples,
                    batch_size=batch_size,
                    workers=workers,
                    output=output,
                    **more,
                ),
                dict(ask="draw", transforms=transforms, seed=seed, epoch=epoch, samples=samples),
            ]
        )
        self.assertFalse(isinstance(answer, Exception), answer)
        images = torch.from_numpy(np.fromfile(output, np.float32)).reshape(len(samples), *answer["shape"][1:])
        return images, answer["labels"], drawn

    def wanted(self, sample, transforms, drawn):
        image = torch.from_numpy(np.asarray(Image.open(self.paths[sample]).convert("RGB")).copy()).permute(2, 0, 1)
        if transforms.get("size"):
            image = F.resize(image, [transforms["size"]] * 2, antialias=transforms.get("antialias", True))
        image = F.to_dtype(image, torch.float32, scale=True)
        size = list(image.shape[1:])
        if transforms.get("crop_padding"):
            fill = [value / 255 for value in transforms["crop_fill"]] if "crop_fill" in transforms else 0
            padded = F.pad(image, [transforms["crop_padding"]], padding_mode=transforms.get("crop_padding_mode", "constant"), fill=fill)
            image = F.crop(padded, drawn["top"], drawn["left"], *size)
        if drawn["flips"]:
            image = F.horizontal_flip(image)
        if transforms.get("rotation_degrees"):
            image = F.rotate(image, drawn["angle"])
        adjust = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)
        for operation in drawn["order"]:
            if transforms.get(("brightness", "contrast", "saturation", "hue")[operation]):
                image = adjust[operation](image, drawn["factors"][operation])
        return F.normalize(image, MEAN, STD)

    def test_equal_torchvision(self):
        samples = [3, 0, 19, 7, 7, 12, 1]
        jitter = dict(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)
        for transforms in (
            dict(),
            dict(crop_padding=4, flip_probability=0.5),
            dict(crop_padding=40, flip_probability=1.0),  # mostly outside
            dict(crop_padding=40, flip_probability=0.5, crop_padding_mode="edge"),
            dict(crop_padding=9, flip_probability=0.5, crop_padding_mode="reflect"),
            dict(crop_padding=10, flip_probability=0.5, crop_padding_mode="symmetric"),
            dict(crop_padding=12, flip_probability=0.5, crop_fill=[255, 0, 100]),
            dict(crop_padding=12, rotation_degrees=15, crop_fill=[1, 200, 255]),
            dict(crop_padding=4, flip_probability=0.5, rotation_degrees=15, **jitter),
            dict(size=24),
            dict(size=48, antialias=False),
        ):
            with self.subTest(transforms):
                images, labels, drawn = self.batches(transforms, samples)
                self.assertEqual(labels, [sample // 10 for sample in samples])
                peer = torch.stack([self.wanted(s, transforms, d) for s, d in zip(samples, drawn, strict=True)])
                # A resized value may round to the next of 256 levels: torchvision resizes bytes with integers. What the
                # colors' steps differ by, up to 1e-6, is divided by the deviation.
                tolerance = 1.01 / 255 / min(STD) if "size" in transforms else 1e-6 / (min(STD) if "hue" in transforms else 1)
                self.assertLessEqual((images - peer).abs().max().item(), tolerance)

    def test_do_not_depend_on_workers_or_on_the_batch(self):
        transforms = dict(crop_padding=4, flip_probability=0.5, rotation_degrees=15, brightness=0.4, hue=0.1)
        samples = list(range(20))
        alone, _, _ = self.batches(transforms, samples, batch_size=1)
        for workers in (0, 1, 4):
            self.assertTrue(torch.equal(alone, self.batches(transforms, samples, workers)[0]))
        self.assertFalse(torch.equal(alone, self.batches(transforms, samples, epoch=4)[0]))
        self.assertFalse(torch.equal(alone, self.batches(transforms, samples, seed=8)[0]))

    def test_batches_are_mixed_as_torchvision_mixes_them(self):
        samples, transforms = list(range(20)), dict(crop_padding=4, flip_probability=0.5)
        plain, numbers, _ = self.batches(transforms, samples)
        for mixing in (dict(mixup_alpha=0.4), dict(cutmix_alpha=1.0), dict(mixup_alpha=0.4, cutmix_alpha=1.0)):
            with self.subTest(mixing):
                made, labels, _ = self.batches(transforms, samples, mixing=mixing, num_classes=5)
                self.assertTrue(torch.equal(made, self.batches(transforms, samples, workers=3, mixing=mixing, num_classes=5)[0]))
                drawn = ask([dict(ask="draw_mixings", seed=7, epoch=3, samples=samples[::4], height=32, width=32, **mixing)])[0]
                v2 = torchvision.transforms.v2
                for batch, one in enumerate(drawn):
                    rows = slice(4 * batch, 4 * batch + 4)
                    top, left, bottom, right = one["box"]
                    params = dict(
                        labels=torch.tensor(numbers[rows]),
                        batch_size=4,
                        lam=one["lambda"],
                        lam_adjusted=one["lambda"],
                        box=(left, top, right, bottom),
                    )
                    peer = (v2.CutMix if one["cuts"] else v2.MixUp)(num_classes=5)
                    self.assertLessEqual((peer.transform(plain[rows], params) - made[rows]).abs().max().item(), 1e-6)
                    share = (peer.transform(params["labels"], params) - torch.tensor(labels[rows])).abs().max().item()
                    self.assertLessEqual(share, 1e-6)

    def test_distributions_of_mixing(self):
        def draw(**mixing):
            return ask([dict(ask="draw_mixings", seed=1, epoch=0, samples=list(range(9000)), height=32, width=24, **mixing)])[0]

        shares = np.array([d["lambda"] for d in draw(mixup_alpha=0.4)])
        self.assertLess(abs(shares.mean() - 0.5), 0.02)
        self.assertLess(abs(shares.var() - 1 / (4 * (2 * 0.4 + 1))), 0.01)  # Beta(a, a)
        cuts = draw(cutmix_alpha=1.0)
        peer = torchvision.transforms.v2.CutMix(num_classes=2, alpha=1.0)
        torch.manual_seed(0)
        images = torch.zeros(2, 3, 32, 24)
        wanted = [peer.make_params([images])["lam_adjusted"] for _ in range(9000)]
        self.assertLess(abs(np.mean([d["lambda"] for d in cuts]) - np.mean(wanted)), 0.02)
        self.assertLess(abs(np.std([d["lambda"] for d in cuts]) - np.std(wanted)), 0.01)
        for d in cuts:
            top, left, bottom, right = d["box"]
            self.assertTrue(0 <= top <= bottom <= 32 and 0 <= left <= right <= 24)
            self.assertAlmostEqual(d["lambda"], 1 - (bottom - top) * (right - left) / (32 * 24))
        both = np.array([d["cuts"] for d in draw(mixup_alpha=0.2, cutmix_alpha=1.0)])
        self.assertLess(abs(both.mean() - 0.5), 0.03)

    def test_distributions(self):
        transforms = dict(crop_padding=4, flip_probability=0.25, rotation_degrees=30, brightness=0.4, contrast=2, hue=0.1)
        drawn = ask([dict(ask="draw", transforms=transforms, seed=1, epoch=0, samples=list(range(9000)))])[0]
        for side in ("top", "left"):
            counts = np.bincount([d[side] for d in drawn], minlength=9)
            self.assertEqual(len(counts), 9)
            self.assertLess(np.abs(counts - 1000).max(), 150)  # 5 standard deviations
        self.assertLess(abs(np.mean([d["flips"] for d in drawn]) - 0.25), 0.025)
        angles = np.array([d["angle"] for d in drawn])
        self.assertTrue((np.abs(angles) <= 30).all() and abs(angles.mean()) < 1 and abs(angles.std() - 30 / 3**0.5) < 0.5)
        brightness, contrast, saturation, hue = np.array([d["factors"] for d in drawn]).T
        self.assertTrue(0.6 <= brightness.min() < 0.61 and 1.39 < brightness.max() <= 1.4)
        self.assertTrue(0 <= contrast.min() < 0.01 and 2.98 < contrast.max() <= 3)  # max(0, 1 - 2) to 1 + 2
        self.assertTrue((saturation == 1).all() and -0.1 <= hue.min() < -0.099 and 0.099 < hue.max() <= 0.1)
        orders = np.unique([d["order"] for d in drawn], axis=0, return_counts=True)
        self.assertEqual(len(orders[0]), 24)
        self.assertLess(np.abs(orders[1] - 375).max(), 100)


if __name__ == "__main__":
    unittest.main()
