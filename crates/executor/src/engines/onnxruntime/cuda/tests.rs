use super::*;
use std::sync::atomic::{AtomicU32, Ordering};

/// An installation of stand-ins: a provider that needs CUDA's libraries by name, those libraries,
/// and the files of a driver with two GPUs.
struct Installation {
    root: PathBuf,
}

impl Installation {
    fn complete() -> Installation {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("ripieno-cuda-{}-{number}", std::process::id()));
        let own = Installation { root };
        own.link("nvidia/cudart/lib/libcudart.so.12", &[]);
        own.link("nvidia/cublas/lib/libcublasLt.so.12", &[]);
        own.link("nvidia/cublas/lib/libcublas.so.12", &["nvidia/cublas/lib/libcublasLt.so.12"]);
        own.link("nvidia/cudnn/lib/libcudnn.so.9", &[]);
        own.link("nvidia/cudnn/lib/libcudnn_ops.so.9", &[]);
        own.link("system/libcuda.so.1", &[]);
        let needed = [
            "nvidia/cublas/lib/libcublas.so.12",
            "nvidia/cudnn/lib/libcudnn.so.9",
            "nvidia/cudart/lib/libcudart.so.12",
        ];
        own.link(&format!("onnxruntime/capi/{PROVIDER}"), &needed);
        own.link(&format!("onnxruntime/capi/{SHARED}"), &[]);
        own.link("onnxruntime/capi/libonnxruntime.so.1", &[]);
        own.write("driver/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\n");
        own.write("driver/gpus/0000:05:00.0/information", "Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-5a\n");
        own.write("driver/gpus/0000:06:00.0/information", "Model: \t\t NVIDIA L4\nGPU UUID: \t GPU-6b\n");
        own
    }

    fn library(&self) -> PathBuf {
        self.root.join("onnxruntime/capi/libonnxruntime.so.1")
    }

    /// Makes a library that needs others.
    fn link(&self, name: &str, needed: &[&str]) {
        let file = self.root.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let soname = format!("-Wl,--no-as-needed,-soname,{}", file_name(&file));
        let mut command = Command::new("cc");
        command.args(["-shared", "-x", "c", "/dev/null", "-x", "none", &soname, "-o"]).arg(&file);
        command.args(needed.iter().map(|name| self.root.join(name)));
        assert!(command.status().unwrap().success(), "{command:?}");
    }

    fn write(&self, name: &str, text: &str) {
        let file = self.root.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    fn without(self, name: &str) -> Installation {
        fs::remove_file(self.root.join(name)).unwrap();
        self
    }

    fn paths(&self) -> SearchPaths {
        let folders = vec![self.root.join("system")];
        SearchPaths { folders, driver: self.root.join("driver"), query: None, visible: None }
    }

    fn find(&self, ordinals: &[u32]) -> Result<CudaParts, String> {
        self.paths().find(Some(&self.library()), ordinals).map_err(|cause| cause.0)
    }

    /// Checks that the installation is refused with these words.
    fn refused(&self, ordinals: &[u32], words: &[&str]) {
        let message = self.find(ordinals).unwrap_err();
        assert!(words.iter().all(|words| message.contains(words)), "{message}");
        assert!(message.starts_with("cannot run models on cuda:"), "{message}");
    }
}

impl Drop for Installation {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

#[test]
fn a_complete_installation_is_found() {
    let own = Installation::complete();
    let parts = own.find(&[1, 0]).unwrap();
    assert_eq!(parts.library, own.library());
    assert_eq!(parts.key, "NVIDIA-H100+NVIDIA-L4/driver-550.54.15");
    let names: Vec<String> = parts.preloads.iter().map(|file| file_name(file)).collect();
    assert_eq!(
        names,
        ["libcublasLt.so.12", "libcublas.so.12", "libcudnn.so.9", "libcudart.so.12", "libcudnn_ops.so.9"],
        "each after those that it needs, and last those that cuDNN loads by itself"
    );
    parts.preload().unwrap();
    assert_eq!(own.find(&[1]).unwrap().key, "NVIDIA-L4/driver-550.54.15");
}

#[test]
fn libraries_that_the_provider_loads_by_name_are_loaded_in_advance() {
    let own = Installation::complete();
    let only_runtime = ["nvidia/cudart/lib/libcudart.so.12"];
    own.link(&format!("onnxruntime/capi/{PROVIDER}"), &only_runtime);
    own.link("nvidia/cu/lib/libcufft.so.11", &[]);
    own.link("nvidia/cu/lib/libcufft.so.11.4.1", &[]);
    own.link("nvidia/cu/lib/libcufft.so.9", &[]);
    own.write("nvidia/cudnn/lib/libcudnn_old.so.9", "cannot be loaded");
    own.link("nvidia/cu/lib/libnvrtc.so.12", &[]);
    let parts = own.find(&[0]).unwrap();
    let names: Vec<String> = parts.preloads.iter().map(|file| file_name(file)).collect();
    assert_eq!(
        names,
        [
            "libcudart.so.12",
            "libcudnn.so.9",
            "libcufft.so.11",
            "libcudnn_old.so.9",
            "libcudnn_ops.so.9",
            "libnvrtc.so.12"
        ],
        "each once, the newest, by the name that the provider asks for"
    );
    parts.preload().unwrap();
}

#[test]
fn each_missing_part_has_its_own_message() {
    let complete = Installation::complete;
    let provider = format!("onnxruntime/capi/{PROVIDER}");
    complete().without(&provider).refused(&[0], &["has no CUDA provider", PROVIDER, "pip install 'onnxruntime-gpu"]);
    complete().without(&format!("onnxruntime/capi/{SHARED}")).refused(&[0], &[SHARED, "pip install"]);
    complete().without("system/libcuda.so.1").refused(&[0], &["no NVIDIA driver", DRIVER, "--gpus all"]);
    complete().without("driver/version").refused(&[0], &["names no GPU", "nvidia-smi"]);
    complete()
        .without("nvidia/cudnn/lib/libcudnn.so.9")
        .refused(&[0], &["needs libcudnn.so.9, which is not installed;"]);
    complete()
        .without("nvidia/cublas/lib/libcublasLt.so.12")
        .refused(&[0], &["needs libcublasLt.so.12, which is not installed;"]);
    complete().refused(&[0, 2], &["there is no cuda:2", "cuda:0 (NVIDIA H100), cuda:1 (NVIDIA L4)"]);
    let other = complete().without("nvidia/cudnn/lib/libcudnn.so.9");
    other.link("nvidia/cudnn/lib/libcudnn.so.8", &[]);
    other.refused(&[0], &["needs libcudnn.so.9", "found libcudnn.so.8, of another version"]);
    let broken = complete();
    broken.write(&provider, "no library");
    broken.refused(&[0], &[PROVIDER, "it is no library"]);
}

#[test]
fn one_message_names_all_missing_parts() {
    let own = Installation::complete().without("nvidia/cudnn/lib/libcudnn.so.9").without("system/libcuda.so.1");
    own.refused(&[0], &["libcudnn.so.9", DRIVER]);
}

#[test]
fn hidden_gpus_are_not_counted() {
    let own = Installation::complete();
    let find = |visible: &str, ordinal| {
        let paths = SearchPaths { visible: Some(visible.to_owned()), ..own.paths() };
        paths.find(Some(&own.library()), &[ordinal]).map(|parts| parts.key).map_err(|cause| cause.0)
    };
    assert_eq!(find("1", 0).unwrap(), "NVIDIA-L4/driver-550.54.15");
    assert_eq!(find("GPU-6b,GPU-5a", 1).unwrap(), "NVIDIA-H100/driver-550.54.15");
    assert!(find("1", 1).unwrap_err().contains("cuda:0 (NVIDIA L4), and CUDA_VISIBLE_DEVICES hides 1"));
    assert!(find("", 0).unwrap_err().contains("has no GPU, and CUDA_VISIBLE_DEVICES hides 2"));
}

#[test]
fn a_library_without_cuda_is_refused_instead_of_serving_on_the_cpu() {
    let library = library::load(None).unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/way_first.onnx");
    let builder = || ort::session::Session::builder(&library.environment).unwrap();
    assert!(builder().commit_from_file(&file).is_ok());
    let cause = configure(builder(), 0, GpuOptions::default()).err().unwrap().to_string();
    assert!(cause.to_lowercase().contains("cuda"), "{cause}");
}
