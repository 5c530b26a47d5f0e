//! Folders as Hugging Face's tools export them.

use super::*;

#[test]
fn an_exported_folder_is_a_model_as_it_is() {
    for file in ["model.onnx", "onnx/model.onnx"] {
        let folder = TempRepository::new();
        folder.write(&format!("mini/{file}"), onnx("mlp.onnx"));
        folder.write("mini/config.json", "{}");
        let report = one(inspect(folder.path(), cpu()));
        assert_eq!((&*report.name, &*report.version, report.error), ("mini", "1", None), "{file}");
        // The folder itself may be served, too.
        let report = one(inspect(&folder.path().join("mini"), cpu()));
        assert_eq!((&*report.name, report.error), ("mini", None), "{file}");
    }
    // Without its configuration a file of that name belongs into a version folder.
    let folder = TempRepository::new();
    folder.write("mini/model.onnx", onnx("mlp.onnx"));
    let error = one(inspect(folder.path(), cpu())).error.unwrap();
    assert!(error.contains("must lie in a version folder"), "{error}");
}
