//! Cache of measured profiles.
//!
//! A measurement takes seconds and occupies a device, so it is made once per model file, device,
//! maximum batch size and maximum length. It is stored beside the model in `.ripieno/`, so that it
//! moves and disappears with the model. If that folder cannot be written (an image layer, a
//! read-only mount), the user's cache folder is used. The cache is a hint: a file that is corrupt
//! or has another key is reported and measured again. Files are written atomically.

use ripieno_base::Nanos;
use ripieno_executor::BlockProfile;
use ripieno_model::{LengthProfiles, Profile};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

const FORMAT: u32 = 1;
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Folders that cache the profiles of one model, in order of preference.
#[derive(Clone, Debug)]
pub struct ProfileCache {
    folders: Vec<PathBuf>,
}

/// Conditions under which a profile is valid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfileKey {
    format: u32,
    device: String,
    model_sha256: Vec<String>,
    max_batch: usize,
    /// Maximum request length, if requests vary in length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_length: Option<u32>,
    /// Shapes of the inputs that were measured, if the file leaves some open.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    shapes: Vec<Vec<i64>>,
    /// Sizes that batches are padded to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    batch_sizes: Vec<usize>,
}

#[derive(Serialize, Deserialize)]
struct ProfileRecord {
    key: ProfileKey,
    /// ℓ(1), ℓ(2), … of each block.
    blocks_ns: Vec<Vec<i64>>,
    /// The same per length, for blocks whose requests vary in length.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    lengths_ns: Vec<Vec<(u32, Vec<i64>)>>,
}

impl ProfileKey {
    /// Returns the key of a model whose blocks are `files`, on a device with this name.
    pub fn new(device: &str, files: &[PathBuf], max_batch: usize) -> Result<ProfileKey, String> {
        let model_sha256 = files.iter().map(|file| hash_of(file)).collect::<Result<_, _>>()?;
        let (max_length, shapes, batch_sizes, device) = (None, Vec::new(), Vec::new(), device.to_owned());
        Ok(ProfileKey { format: FORMAT, device, model_sha256, max_batch, max_length, shapes, batch_sizes })
    }

    /// Sets the shapes of the inputs that are measured.
    pub fn with_shapes(self, shapes: Vec<Vec<i64>>) -> ProfileKey {
        ProfileKey { shapes, ..self }
    }

    /// Sets the sizes that batches are padded to.
    pub fn with_batch_sizes(self, sizes: &[usize]) -> ProfileKey {
        ProfileKey { batch_sizes: sizes.to_vec(), ..self }
    }

    /// Returns the sizes that batches are padded to.
    pub fn batch_sizes(&self) -> &[usize] {
        &self.batch_sizes
    }

    /// Returns the key for another maximum batch size, and the sizes that batches are padded to.
    pub fn with_max_batch(&self, max_batch: usize, sizes: &[usize]) -> ProfileKey {
        ProfileKey { max_batch, ..self.clone() }.with_batch_sizes(sizes)
    }

    /// Sets the maximum request length.
    pub fn with_lengths(self, max_length: Option<u32>) -> ProfileKey {
        ProfileKey { max_length, ..self }
    }

    /// Returns the name of the cache file of this kind for this key.
    pub(super) fn file_name(&self, kind: &str) -> String {
        let mut words =
            format!("{}\n{}\n{}\n{}", self.format, self.device, self.model_sha256.join(","), self.max_batch);
        words.extend(self.max_length.map(|length| format!("\n{length}")));
        words.extend(self.shapes.iter().map(|shape| format!("\n{shape:?}")));
        words.extend(self.batch_sizes.iter().map(|size| format!("\nsize {size}")));
        format!("{kind}-{}.json", short_hash(&words))
    }
}

impl ProfileCache {
    /// Returns the cache of the model in `folder`.
    pub fn beside(folder: &Path) -> ProfileCache {
        ProfileCache { folders: cache_folders(folder) }
    }

    /// Returns the profiles of the model's blocks if they are cached.
    pub fn read(&self, key: &ProfileKey) -> Option<Vec<BlockProfile>> {
        let name = key.file_name("profile");
        self.folders.iter().map(|folder| folder.join(&name)).filter(|path| path.is_file()).find_map(|path| {
            let profiles = read_file(&path, key);
            if let Err(cause) = &profiles {
                tracing::warn!("{}: ignored and measured anew: {cause}", path.display());
            }
            profiles.ok()
        })
    }

    /// Stores the profiles in the first folder that can be written.
    pub fn write(&self, key: &ProfileKey, blocks: &[BlockProfile]) -> Result<PathBuf, String> {
        let in_nanos = |profile: &Profile| profile.table().iter().map(|latency| latency.0).collect::<Vec<i64>>();
        let by_length =
            |lengths: &LengthProfiles| lengths.table().iter().map(|(of, profile)| (*of, in_nanos(profile))).collect();
        let record = ProfileRecord {
            key: key.clone(),
            blocks_ns: blocks.iter().map(|block| in_nanos(&block.profile)).collect(),
            lengths_ns: blocks.iter().filter_map(|block| block.lengths.as_ref()).map(by_length).collect(),
        };
        let json = serde_json::to_vec_pretty(&record).map_err(|error| error.to_string())?;
        let mut causes = Vec::new();
        for folder in &self.folders {
            let path = folder.join(key.file_name("profile"));
            match write_whole(&path, &json) {
                Ok(()) => return Ok(path),
                Err(error) => causes.push(format!("{}: {error}", path.display())),
            }
        }
        Err(format!("the profile cannot be kept and will be measured again: {}", causes.join("; ")))
    }
}

fn read_file(path: &Path, key: &ProfileKey) -> Result<Vec<BlockProfile>, String> {
    if fs::metadata(path).map_err(|error| error.to_string())?.len() > MAX_FILE_BYTES {
        return Err(format!("it is larger than {MAX_FILE_BYTES} bytes"));
    }
    let bytes = fs::read(path).map_err(|error| error.to_string())?;
    let record: ProfileRecord = serde_json::from_slice(&bytes).map_err(|error| format!("it is corrupt: {error}"))?;
    if record.key != *key {
        return Err("it belongs to another model, device or batch size".to_owned());
    }
    let (blocks, lengths) = (record.blocks_ns, record.lengths_ns);
    if blocks.is_empty() || blocks.iter().any(|block| block.len() != key.max_batch) {
        return Err(format!("it does not hold {} latencies for each block", key.max_batch));
    }
    if lengths.len() != if key.max_length.is_some() { blocks.len() } else { 0 } {
        return Err("it does not hold the lengths of each block".to_owned());
    }
    let by_length =
        lengths.iter().map(|block| read_lengths(block).map(Some)).chain(std::iter::repeat_with(|| Ok(None)));
    let block = |(latencies, lengths): (&Vec<i64>, Result<_, String>)| {
        Ok(BlockProfile { profile: read_profile(latencies)?, lengths: lengths? })
    };
    blocks.iter().zip(by_length).map(block).collect()
}

fn read_profile(latencies: &[i64]) -> Result<Profile, String> {
    let latencies: Vec<Nanos> = latencies.iter().map(|&latency| Nanos(latency)).collect();
    Profile::from_table(&latencies).map_err(|error| format!("it is corrupt: {error}"))
}

fn read_lengths(block: &[(u32, Vec<i64>)]) -> Result<LengthProfiles, String> {
    let profile = |(length, latencies): &(u32, Vec<i64>)| Ok((*length, read_profile(latencies)?));
    let table = block.iter().map(profile).collect::<Result<Vec<_>, String>>()?;
    LengthProfiles::new(table).map_err(|error| format!("it is corrupt: {error}"))
}

/// Creates a cache folder with a .gitignore, so that version control ignores it.
fn make_folder(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let ignore = folder.join(".gitignore");
    if ignore.exists() { Ok(()) } else { fs::write(ignore, "*\n") }
}

/// Writes a file atomically, through a temporary file and a rename.
pub(super) fn write_whole(path: &Path, content: &[u8]) -> io::Result<()> {
    let draft = path.with_extension(format!("{}-{}.draft", std::process::id(), next_number()));
    make_folder(path.parent().unwrap_or(Path::new(".")))?;
    let written = fs::write(&draft, content).and_then(|()| fs::rename(&draft, path));
    if written.is_err() {
        let _ = fs::remove_file(&draft);
    }
    written
}

/// Returns the cache folders for the model in `folder`, in order of preference.
pub(super) fn cache_folders(folder: &Path) -> Vec<PathBuf> {
    let own = folder.join(".ripieno");
    // A link planted in a model's folder must not redirect the server's writes.
    let own = if own.is_symlink() { None } else { Some(own) };
    own.into_iter().chain(user_cache_folder()).collect()
}

/// Creates a folder atomically: `write` fills a temporary folder, which is then renamed.
pub(super) fn keep_folder(path: &Path, write: impl Fn(&Path) -> Result<(), String>) -> Result<PathBuf, String> {
    let draft = path.with_extension(format!("{}-{}.draft", std::process::id(), next_number()));
    make_folder(path.parent().unwrap_or(Path::new("."))).map_err(|error| error.to_string())?;
    let made = fs::create_dir(&draft).map_err(|error| error.to_string()).and_then(|()| write(&draft));
    // An existing folder is damaged, or another process wrote the same content first.
    let _ = fs::remove_dir_all(path);
    let kept = made.and_then(|()| fs::rename(&draft, path).map_err(|error| error.to_string()));
    if kept.is_err() {
        let _ = fs::remove_dir_all(&draft);
    }
    kept.map(|()| path.to_owned())
}

/// Returns the SHA-256 of a file.
pub(super) fn hash_of(file: &Path) -> Result<String, String> {
    sha256(file).map_err(|error| format!("{}: cannot be read: {error}", file.display()))
}

/// Returns a short hash of a key.
pub(super) fn short_hash(key: &str) -> String {
    hex(&Sha256::digest(key))[..16].to_owned()
}

fn next_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Returns `$XDG_CACHE_HOME/ripieno` or `~/.cache/ripieno`.
pub fn user_cache_folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    cache.map(|cache| cache.join("ripieno"))
}

fn sha256(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut chunk = vec![0; 1 << 16];
    loop {
        let read = file.read(&mut chunk)?;
        if read == 0 {
            return Ok(hex(&hash.finalize()));
        }
        hash.update(&chunk[..read]);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::TempRepository;

    fn profile() -> BlockProfile {
        BlockProfile { profile: Profile::linear(1.0, 2.0, 4).unwrap(), lengths: None }
    }

    fn cache(folders: &[PathBuf]) -> ProfileCache {
        ProfileCache { folders: folders.to_vec() }
    }

    #[test]
    fn a_profile_comes_back_for_its_own_key_only() {
        let folder = TempRepository::new();
        let model = folder.write("model.onnx", "abc");
        let key = ProfileKey::new("cpu", std::slice::from_ref(&model), 4).unwrap();
        let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(key.model_sha256, [sha256]);
        let cache = cache(&[folder.path().join("a")]);
        assert_eq!(cache.read(&key), None);
        let path = cache.write(&key, &[profile()]).unwrap();
        assert_eq!(cache.read(&key), Some(vec![profile()]));
        let names = fs::read_dir(path.parent().unwrap()).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.filter(|name| *name != ".gitignore").count(), 1, "no draft is left behind");
        folder.write("model.onnx", "abcd");
        for other in [ProfileKey::new("cpu", &[model], 4), ProfileKey::new("gpu", &[], 4)] {
            assert_eq!(cache.read(&other.unwrap()), None);
        }
    }

    #[test]
    fn profiles_by_length_are_kept_apart() {
        let folder = TempRepository::new();
        let cache = cache(&[folder.path().to_owned()]);
        let key = |longest| ProfileKey::new("cpu", &[], 4).unwrap().with_lengths(longest);
        let linear = |alpha_ms| Profile::linear(alpha_ms, 2.0, 4).unwrap();
        let lengths = LengthProfiles::new(vec![(8, linear(1.0)), (16, linear(1.5))]).unwrap();
        let block = BlockProfile { profile: linear(1.5), lengths: Some(lengths) };
        cache.write(&key(None), &[profile()]).unwrap();
        let path = cache.write(&key(Some(16)), &[block.clone(), block.clone()]).unwrap();
        assert_eq!(cache.read(&key(Some(16))), Some(vec![block.clone(), block]));
        assert_eq!((cache.read(&key(None)), cache.read(&key(Some(32)))), (Some(vec![profile()]), None));
        let good = fs::read_to_string(&path).unwrap();
        fs::write(&path, good.replace("lengths_ns", "length_ns")).unwrap();
        assert_eq!(cache.read(&key(Some(16))), None);
    }

    #[test]
    fn a_corrupt_or_foreign_file_is_ignored_and_written_anew() {
        let folder = TempRepository::new();
        let cache = cache(&[folder.path().to_owned()]);
        let key = ProfileKey::new("cpu", &[], 4).unwrap();
        let path = cache.write(&key, &[profile()]).unwrap();
        let good = fs::read_to_string(&path).unwrap();
        for bad in [good.replace("cpu", "gpu"), good.replace("3000000", "-3"), good[..good.len() / 2].to_owned()] {
            fs::write(&path, &bad).unwrap();
            assert_eq!(cache.read(&key), None, "{bad}");
        }
        cache.write(&key, &[profile()]).unwrap();
        assert_eq!(cache.read(&key), Some(vec![profile()]));
    }

    #[test]
    fn a_link_does_not_choose_where_to_write() {
        let folder = TempRepository::new();
        std::os::unix::fs::symlink("/etc", folder.path().join(".ripieno")).unwrap();
        assert!(cache_folders(folder.path()).iter().all(|kept| !kept.starts_with(folder.path())));
        std::fs::remove_file(folder.path().join(".ripieno")).unwrap();
        assert_eq!(cache_folders(folder.path())[0], folder.path().join(".ripieno"));
    }

    #[test]
    fn a_folder_that_cannot_be_written_falls_back_to_the_next() {
        let folder = TempRepository::new();
        let blocked = folder.write("file", "").join(".ripieno");
        let fallback = folder.path().join("home");
        let key = ProfileKey::new("cpu", &[], 4).unwrap();
        let both = cache(&[blocked.clone(), fallback.clone()]);
        assert!(both.write(&key, &[profile()]).unwrap().starts_with(fallback));
        assert_eq!(both.read(&key), Some(vec![profile()]));
        assert!(cache(&[blocked]).write(&key, &[profile()]).unwrap_err().contains("will be measured again"));
    }
}
