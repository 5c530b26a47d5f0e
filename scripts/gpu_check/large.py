"""The models of random weights as they are served: written once, and profiled and timed alone once for all sections."""

import functools
import os
import shutil

import built
import repository


class LargeModels:
    """A repository with a model shaped like ResNet-50 and one like BERT-base, or small ones for a quick run."""

    def __init__(self, check):
        self.check, self.folder = check, check.folder / "built"
        self.nets = built.models(check.quick)
        self.largest = 8 if check.quick else 64
        repository.write_built(self.folder, self.nets, self.largest)
        self.sessions, self.alone_ms, self.cpu_nodes = {}, {}, set()

    @property
    def names(self):
        return list(self.nets)

    def file(self, name):
        return self.folder / name / "1/model.onnx"

    def inputs(self, name):
        return self.nets[name][1]

    @functools.cached_property
    def reports(self):
        """The profile of each model, or its error. Models whose operators a GPU cannot all run are tried again with leave to."""
        reports = self.profile(self.folder)
        self.cpu_nodes = {report["name"] for report in reports if "allow_cpu_nodes" in (report["error"] or "")}
        if self.cpu_nodes:
            [repository.allow_cpu_nodes(self.folder, name) for name in self.cpu_nodes]
            reports = self.profile(self.folder)
        return {report["name"]: report for report in reports}

    def profile(self, folder):
        return self.check.ripieno("profile", folder, *self.check.flags(self.check.device))["models"]

    def with_other_sizes(self, name):
        """A folder with the model alone: its batches have up to four times as many rows, and their sizes are not given."""
        folder = self.check.folder / "sizes"
        shutil.copytree(self.folder / name / "1", folder / name / "1", copy_function=os.link)
        (folder / name / "model.toml").write_text(f"slo_ms = 1000\nmax_batch = {4 * self.largest}\ngpu_tolerance = 1.0\n")
        return folder

    def library_ms(self, name, rows):
        """The median time of a batch in ONNX Runtime alone, called from Python."""
        import site_library

        if (name, rows) not in self.alone_ms:
            if name not in self.sessions:
                self.sessions[name] = site_library.session(self.file(name), self.check.device)
            runs = 3 if self.check.quick else 10
            self.alone_ms[name, rows] = site_library.run_ms(self.sessions[name], self.inputs(name), rows, runs)
        return self.alone_ms[name, rows]
