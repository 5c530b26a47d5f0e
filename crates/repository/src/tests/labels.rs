//! Class labels beside a model.

use super::{EMULATED, emulated};
use crate::fixture::TempRepository;
use crate::inspect;

fn error(labels: &str, content: Option<&[u8]>) -> Option<String> {
    let folder = TempRepository::new();
    folder.write("m/model.toml", format!("{EMULATED}[[output]]\nname = \"output\"\nlabels = {labels}\n"));
    if let Some(content) = content {
        folder.write("m/labels.txt", content);
    }
    folder.write("secret.txt", "a");
    inspect(folder.path(), emulated()).unwrap().remove(0).error
}

#[test]
fn labels_are_read_from_the_models_folder_alone() {
    assert_eq!(error("\"labels.txt\"", Some(b"ant\nbee\n")), None);
    let refused = [
        ("\"labels.txt\"", None, "m/labels.txt: the labels of output 'output' cannot be read"),
        ("\"../secret.txt\"", None, "labels lie in the model's folder"),
        ("\"/etc/hostname\"", None, "labels lie in the model's folder"),
        ("\".\"", None, "labels are a text file"),
        ("\"labels.txt\"", Some(&b"\xff"[..]), "labels are UTF-8 text"),
        ("\"labels.txt\"", Some(&[b'a'; 1001][..]), "labels.txt:1: a label has at most 1000 bytes"),
        ("3", None, "must be text in quotes, for example labels = \"labels.txt\""),
        ("\"labels.txt\"\n[[output]]\nname = \"output\"\nlabels = \"b\"", None, "two [[output]] are named \"output\""),
    ];
    for (labels, content, wanted) in refused {
        let error = error(labels, content).unwrap();
        assert!(error.contains(wanted), "{labels}: {error}");
    }
}
