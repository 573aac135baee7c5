"""CIFAR, IDX and folders of pictures: what is read, and what is refused."""

import gzip
import pathlib
import struct
import tempfile
import unittest

import numpy as np

from torchvision_peer import torchvision
from vision_probe import ask, write_icons


def cifar_records(n, label_bytes, classes, seed):
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, classes, (n, label_bytes)).astype(np.uint8)
    return labels, draw.integers(0, 256, (n, 3072)).astype(np.uint8)


class PictureSets(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.directory = pathlib.Path(temporary.name)

    def ask(self, split="train", **question):
        return ask([dict(ask="set", directory=str(self.directory), split=split, **question)])[0]

    def pixels(self, samples, split="train", **question):
        """uint8 [samples, 3, height, width], from the normalized values."""
        output = self.directory / "out"
        answer = ask(
            [
                dict(
                    ask="batches",
                    directory=str(self.directory),
                    split=split,
                    transforms={},
                    seed=0,
                    epoch=0,
                    samples=samples,
                    batch_size=len(samples),
                    workers=0,
                    output=str(output),
                    **question,
                )
            ]
        )[0]
        self.assertFalse(isinstance(answer, Exception), answer)
        values = np.fromfile(output, np.float32).reshape(answer["shape"])
        mean, std = np.array([[0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]]).reshape(2, 1, 3, 1, 1)
        return np.rint((values * std + mean) * 255).astype(int)

    def assert_refused(self, answer, *texts):
        self.assertIsInstance(answer, Exception)
        for text in texts:
            self.assertIn(text, str(answer))
        self.assertNotIn("\n", str(answer))

    def write_cifar10(self, n=5):
        sets = {}
        for i, name in enumerate([f"data_batch_{k}.bin" for k in range(1, 6)] + ["test_batch.bin"]):
            labels, pixels = sets[name] = cifar_records(n, 1, 10, i)
            (self.directory / name).write_bytes(np.concatenate([labels, pixels], 1).tobytes())
        return sets

    def test_cifar10(self):
        sets = self.write_cifar10()
        (self.directory / "batches.meta.txt").write_text("airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n\n")
        small = dict(kind="cifar10", records_per_file=5)
        answer = self.ask(**small)
        self.assertEqual(answer["classes"][:2] + answer["classes"][-1:], ["airplane", "automobile", "truck"])
        names = self.directory / "batches.meta.txt"
        names.write_bytes(b"\xef\xbb\xbf" + names.read_bytes())  # a byte order mark is no part of a name
        self.assertEqual(self.ask(**small)["classes"], answer["classes"])
        self.assertTrue(answer["may_be_mirrored"])
        self.assertEqual(answer["labels"], [int(x) for k in range(1, 6) for x in sets[f"data_batch_{k}.bin"][0][:, 0]])
        self.assertTrue(answer["sources"][7].endswith("data_batch_2.bin, record 3"))
        pixels = self.pixels([0, 7, 24], **small)
        for row, (file, record) in zip(pixels, ((1, 0), (2, 2), (5, 4)), strict=True):
            self.assertTrue((row == sets[f"data_batch_{file}.bin"][1][record].reshape(3, 32, 32)).all())
        self.assertEqual(len(self.ask("test", **small)["labels"]), 5)

    def test_cifar_of_any_length(self):
        sets = {}
        for i, n in enumerate((3, 1, 7, 2, 5, 4)):
            name = f"data_batch_{i + 1}.bin" if i < 5 else "test_batch.bin"
            labels, pixels = sets[name] = cifar_records(n, 1, 10, i)
            (self.directory / name).write_bytes(np.concatenate([labels, pixels], 1).tobytes())
        answer = self.ask()
        train = [sets[f"data_batch_{k}.bin"] for k in range(1, 6)]
        self.assertEqual(answer["labels"], [int(x) for labels, _ in train for x in labels[:, 0]])
        self.assertEqual(
            [source.split("data_batch_")[1] for source in answer["sources"]],
            [f"{k}.bin, record {i + 1}" for k, (labels, _) in enumerate(train, 1) for i in range(len(labels))],
        )
        self.assertTrue((self.pixels(list(range(18))) == np.concatenate([p for _, p in train]).reshape(-1, 3, 32, 32)).all())
        self.assertEqual(len(self.ask("test")["labels"]), 4)

    def test_cifar10_of_another_length_is_cut_off(self):
        self.write_cifar10()
        self.assert_refused(self.ask(kind="cifar10", records_per_file=10000), "data_batch_1.bin has 15365 bytes; expected 30730000")
        whole = (self.directory / "data_batch_2.bin").read_bytes()
        (self.directory / "data_batch_2.bin").write_bytes(whole[:-5])
        self.assert_refused(self.ask(), "data_batch_2.bin has 15360 bytes; expected whole records of 3073: 3068 are left over")
        (self.directory / "data_batch_2.bin").write_bytes(whole)
        small = dict(kind="cifar10", records_per_file=5)
        path = self.directory / "data_batch_4.bin"
        path.write_bytes(path.read_bytes()[:-1])
        self.assert_refused(self.ask(**small), "data_batch_4.bin has 15364 bytes; expected 15365")
        path.write_bytes(b"")
        self.assert_refused(self.ask(**small), "data_batch_4.bin is empty")
        path.unlink()
        self.assert_refused(self.ask(**small), "data_batch_4.bin: No such file")

    def test_a_label_outside_the_classes(self):
        self.write_cifar10()
        content = bytearray((self.directory / "data_batch_3.bin").read_bytes())
        content[3073] = 10
        (self.directory / "data_batch_3.bin").write_bytes(content)
        self.assert_refused(self.ask(kind="cifar10", records_per_file=5), "data_batch_3.bin, record 2: label 10; expected 0 to 9")
        (self.directory / "batches.meta.txt").write_text("one\ntwo\n")
        self.assert_refused(self.ask(kind="cifar10", records_per_file=5), "batches.meta.txt has 2 names; expected 10")

    def test_cifar100(self):
        labels, pixels = cifar_records(6, 2, 100, 3)
        labels[:, 0] %= 20
        (self.directory / "train.bin").write_bytes(np.concatenate([labels, pixels], 1).tobytes())
        small = dict(kind="cifar100", records_per_file=6)
        answer = self.ask(**small)
        self.assertEqual(answer["labels"], labels[:, 1].tolist())
        self.assertEqual(len(answer["classes"]), 100)
        self.assertTrue(answer["may_be_mirrored"])
        self.assertTrue((self.pixels([4], **small)[0] == pixels[4].reshape(3, 32, 32)).all())
        self.assertEqual(self.ask(), answer)
        self.assert_refused(self.ask(kind="cifar100", records_per_file=50000), "train.bin has 18444 bytes; expected 153700000")

    def write_mnist(self):
        raw = self.directory / "MNIST" / "raw"
        raw.mkdir(parents=True)
        draw = np.random.default_rng(4)
        sets = {}
        for name, n in (("train", 7), ("t10k", 3)):
            images, labels = draw.integers(0, 256, (n, 28, 28)).astype(np.uint8), draw.integers(0, 10, n).astype(np.uint8)
            (raw / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">HBBIII", 0, 8, 3, n, 28, 28) + images.tobytes())
            (raw / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">HBBI", 0, 8, 1, n) + labels.tobytes())
            sets[name] = images, labels
        return raw, sets

    def test_mnist_equals_torchvision(self):
        _, sets = self.write_mnist()
        for split, train in (("train", True), ("test", False)):
            peer = torchvision.datasets.MNIST(self.directory, train=train)
            self.assertEqual(self.ask(split)["labels"], peer.targets.tolist())
            pixels = self.pixels(list(range(len(peer))), split)
            self.assertTrue((pixels == peer.data.numpy()[:, None]).all())
            self.assertEqual(len(peer), len(sets["train" if train else "t10k"][1]))

    def test_bad_idx(self):
        raw, _ = self.write_mnist()
        images, labels = raw / "train-images-idx3-ubyte", raw / "train-labels-idx1-ubyte"
        good, good_labels = images.read_bytes(), labels.read_bytes()
        for content, wanted in (
            (good[:-1], "behind its header, which says 7 x 28 x 28"),
            (good + b"x", "7 x 28 x 28"),
            (good_labels, "no IDX file of bytes in 3 dimensions"),
            (good[:10], "no IDX file"),
            (b"\0\0\x08\x03" + b"\xff" * 12, "is it cut off?"),
        ):
            images.write_bytes(content)
            self.assert_refused(self.ask(), "train-images-idx3-ubyte", wanted)
        images.write_bytes(good)
        labels.write_bytes(good_labels[:-1] + b"\x0b")
        self.assert_refused(self.ask(), "train-labels-idx1-ubyte, record 7: label 11; expected 0 to 9")
        labels.write_bytes(struct.pack(">HBBI", 0, 8, 1, 6) + good_labels[8:-1])
        self.assert_refused(self.ask(), "has 7 pictures, but", "has 6 labels")

    def test_gzipped_idx(self):
        """As many sites give the files; one packed and one not is fine too."""
        raw, sets = self.write_mnist()
        wanted = self.ask(), self.pixels(list(range(7)))
        for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
            content = (raw / name).read_bytes()
            (raw / name).unlink()
            packed = gzip.compress(content[:9]) + gzip.compress(content[9:])  # members that follow each other
            (raw / (name + ".gz")).write_bytes(packed + b"\0" * 100)
            answer = self.ask()
            self.assertEqual(answer["labels"], wanted[0]["labels"])
            self.assertTrue((self.pixels(list(range(7))) == wanted[1]).all())
        self.assertTrue(answer["sources"][2].endswith("train-images-idx3-ubyte.gz, record 3"))
        for content, why in (
            (packed[:-12], "cannot be unpacked; is it whole?"),
            (content, "it is not packed by gzip"),
            (b"", "is empty"),
            (packed[:20] + b"\xff" + packed[21:], "cannot be unpacked"),
            (gzip.compress(content[:-1]), "is it cut off?"),
        ):
            (raw / (name + ".gz")).write_bytes(content)
            self.assert_refused(self.ask(), name + ".gz", why)

    def test_a_folder_equals_image_folder(self):
        write_icons(self.directory, classes=("b", "a", "Z", "ä"), each=3)
        nested = self.directory / "train" / "a" / "more" / "below"
        nested.mkdir(parents=True)
        (self.directory / "train" / "a" / "a-001.png").rename(nested / "x.PNG")
        (self.directory / "train" / "a" / "notes.txt").write_text("no picture")
        peer = torchvision.datasets.ImageFolder(self.directory / "train")
        answer = self.ask()
        self.assertEqual(answer["classes"], peer.classes)
        self.assertFalse(answer["may_be_mirrored"])
        self.assertEqual(answer["labels"], peer.targets)
        self.assertEqual(answer["sources"], [path for path, _ in peer.samples])
        wanted = np.stack([np.asarray(image).transpose(2, 0, 1) for image, _ in peer])
        self.assertTrue((self.pixels(list(range(len(peer)))) == wanted).all())

    def test_a_link_to_nothing_is_no_picture_less(self):
        write_icons(self.directory, each=2)
        (self.directory / "train" / "apps" / "z.png").symlink_to("/nowhere/z.png")
        peer = torchvision.datasets.ImageFolder(self.directory / "train")
        self.assertEqual(self.ask()["sources"], [path for path, _ in peer.samples])
        answer = ask(
            [
                dict(
                    ask="batches",
                    directory=str(self.directory),
                    split="train",
                    transforms={},
                    seed=0,
                    epoch=0,
                    samples=[2],
                    batch_size=1,
                    workers=0,
                    output=str(self.directory / "out"),
                )
            ]
        )[0]
        self.assert_refused(answer, "z.png", "No such file", "(sample 2)")

    def test_a_folder_that_cannot_be_read_is_named(self):
        write_icons(self.directory, each=2)
        (self.directory / "train" / "mimetypes" / "again").symlink_to(".")  # in itself, without an end
        self.assert_refused(self.ask(), "train/mimetypes", "Too many levels of symbolic links")

    def test_a_file_that_is_cut_off_while_it_is_in_use(self):
        self.write_cifar10()
        answer = ask(
            [
                dict(
                    ask="cut_off",
                    directory=str(self.directory),
                    split="train",
                    kind="cifar10",
                    records_per_file=5,
                    file=str(self.directory / "data_batch_1.bin"),
                    bytes=0,
                )
            ]
        )[0]
        self.assert_refused(answer, "data_batch_1.bin was cut off while it was in use: 0 of 15365 bytes")

    def test_samples_that_are_not_there(self):
        write_icons(self.directory)
        for sample in (12, 10**6, -1):
            answer = ask(
                [
                    dict(
                        ask="batches",
                        directory=str(self.directory),
                        split="train",
                        transforms={},
                        seed=0,
                        epoch=0,
                        samples=[sample],
                        batch_size=1,
                        workers=1,
                        output=str(self.directory / "out"),
                    )
                ]
            )[0]
            self.assert_refused(answer, f"there is no sample {sample}; there are 12 pictures")

    def test_bad_folders(self):
        self.assert_refused(self.ask(), "holds no training pictures; expected data_batch_1.bin")
        write_icons(self.directory, splits=("train",))
        self.assert_refused(self.ask("test"), "holds no test pictures")
        (self.directory / "train" / "empty").mkdir()
        self.assert_refused(self.ask(), "the class folder", "train/empty has no pictures; expected .png, .jpg or .jpeg")
        (self.directory / "test").mkdir()
        self.assert_refused(self.ask("test"), "test has no folders; expected one per class")
        self.assert_refused(ask([dict(ask="set", directory="/nowhere", split="train")])[0], "/nowhere is not a directory")

    def test_sizes_that_differ(self):
        write_icons(self.directory, splits=("train",), each=1)
        write_icons(self.directory, classes=("large",), splits=("train",), each=1, size=40)
        question = dict(
            ask="batches",
            directory=str(self.directory),
            split="train",
            seed=0,
            epoch=0,
            samples=[0, 1, 2],
            batch_size=3,
            workers=0,
            output=str(self.directory / "out"),
        )
        mixed, resized = ask([question | dict(transforms={}), question | dict(transforms={"size": 32})])
        self.assert_refused(mixed, "large-000.png: it has 40 x 40 pixels, others of its batch 32 x 32", "(sample 1)")
        self.assertEqual(resized["shape"], [3, 3, 32, 32])


if __name__ == "__main__":
    unittest.main()
