"""Bad pictures, files and flags of resnet_ddp: one clear line, a non-zero exit code, nothing half written."""

import pathlib
import shutil
import tempfile
import unittest

from torchvision_peer import torchvision

import torch

from resnet_runs import run
from vision_probe import write_icons


class BadInput(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.directory = pathlib.Path(temporary.name)
        self.data, self.output = self.directory / "data", self.directory / "out"
        write_icons(self.data, each=3, size=12)

    def refused(self, *flags, ranks=2, **options):
        done = run(self.data, self.output, *flags, ranks=ranks, **options)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        lines = [line for line in done.stderr.splitlines() if "error" in line and "lockrun" not in line]
        self.assertEqual(len(lines), 1, done.stderr)
        self.assertFalse(self.output.exists() and any(path.suffix != ".pth" for path in self.output.iterdir()))
        return lines[0]

    def test_truncated_batch_files(self):
        shutil.rmtree(self.data)
        self.data.mkdir()
        for i in range(1, 6):
            with open(self.data / f"data_batch_{i}.bin", "wb") as file:
                file.truncate(30_730_000 if i != 3 else 30_730_000 - 4096)
        with open(self.data / "test_batch.bin", "wb") as file:
            file.truncate(30_730_000)
        self.assertIn("data_batch_3.bin has 30725904 bytes; expected whole records of 3073: 2050 are left over; is it cut off?", self.refused())

    def test_a_label_outside_the_classes(self):
        shutil.rmtree(self.data)
        self.data.mkdir()
        for name in [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]:
            with open(self.data / name, "wb") as file:
                file.truncate(30_730_000)
        with open(self.data / "data_batch_5.bin", "r+b") as file:
            file.seek(3073 * 9999)
            file.write(b"\x0a")
        self.assertIn("data_batch_5.bin, record 10000: label 10; expected 0 to 9", self.refused())

    def test_an_empty_class_folder(self):
        (self.data / "train" / "void").mkdir()
        self.assertIn("data/train/void has no pictures; expected .png, .jpg or .jpeg files", self.refused())

    def test_classes_that_differ(self):
        shutil.rmtree(self.data / "test" / "apps")
        self.assertIn("2 classes, the test pictures 1: only the training pictures have apps;", self.refused())
        (self.data / "test" / "mimetypes").rename(self.data / "test" / "types")
        (self.data / "train" / "apps").rename(self.data / "train" / "types")
        (self.data / "test" / "more").mkdir()
        next((self.data / "test" / "types").iterdir()).rename(self.data / "test" / "more" / "x.png")
        self.assertIn("2 classes, the test pictures 2: only the training pictures have mimetypes;", self.refused(ranks=1))
        shutil.rmtree(self.data / "train" / "mimetypes")
        self.assertIn("1 classes, the test pictures 2: only the test pictures have more;", self.refused(ranks=1))

    def test_a_picture_that_does_not_decode(self):
        path = self.data / "train" / "apps" / "apps-001.png"
        path.write_bytes(path.read_bytes()[:60])
        line = self.refused()
        self.assertIn("train/apps/apps-001.png: it is no valid PNG file", line)
        self.assertIn("(sample 1)", line)

    def test_a_model_of_another_architecture(self):
        self.output.mkdir()
        torch.save(torchvision.models.mobilenet_v2(num_classes=10).state_dict(), self.output / "resnet_distributed.pth")
        line = self.refused("--resume")
        self.assertIn("resnet_distributed.pth is of another model: conv1.weight is missing", line)
        self.assertIn("more", line)
        torch.save(torchvision.models.resnet34(num_classes=2).state_dict(), self.output / "resnet_distributed.pth")
        self.assertIn("layer1.2.bn1.bias is unexpected", self.refused("--resume", small=False))
        torch.save(torchvision.models.resnet18(num_classes=1).state_dict(), self.output / "resnet_distributed.pth")
        line = self.refused("--resume", small=False)
        self.assertIn("resnet_distributed.pth: fc.weight has shape [1, 512]; the 2 classes of the pictures in ", line)
        self.assertIn("need [2, 512]; --ignore-mismatched-sizes makes a new head", line)
        (self.output / "resnet_distributed.pth").write_bytes(b"no zip at all")
        self.assertIn("resnet_distributed.pth", self.refused("--resume"))

    def test_nothing_to_resume_from(self):
        self.assertIn("has neither a checkpoint nor resnet_distributed.pth", self.refused("--resume"))
        self.assertIn("has neither a checkpoint nor x.pth", self.refused("--resume", "--model-filename", "x.pth"))
        self.assertIn("exclude each other", self.refused("--resume", "--resume-from-checkpoint", "latest"))

    def test_a_model_file_that_cannot_be_written_is_told_before_training(self):
        self.assertIn("cannot create a temporary file to replace", self.refused("--model-filename", "x" * 300 + ".pth"))

    def test_flags(self):
        self.assertIn("--random_seed -1: expected a whole number", self.refused("--random_seed", "-1"))
        self.assertIn("--hue is 0.7; expected 0 to 0.5", self.refused("--hue", 0.7))
        self.assertIn("--depth 50: expected 18 or 34", self.refused("--depth", 50))
        self.assertIn("is not a directory", self.refused("--data-dir", "/nowhere"))
        self.assertIn("--num-classes", self.refused("--num-classes", "x"))
        self.assertIn("--num-classes", self.refused("--num-classes", -7, ranks=1))
        self.assertIn("--brightness is inf; expected 0 to 1000000", self.refused("--brightness", "inf", ranks=1))
        self.assertIn("--crop-padding is 4.611686018427388e+18; expected 0 to 1000000", self.refused("--crop-padding", 2**62, ranks=1))
        self.assertIn("out/. is a directory; expected the name of a file", self.refused("--model-filename", ".", ranks=1))


if __name__ == "__main__":
    unittest.main()
