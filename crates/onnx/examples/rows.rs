//! Prints for ONNX files whether the rows of a batch are independent, or the operator at which they
//! meet: `cargo run -p ripieno-onnx --example rows -- model.onnx …`.
//!
//! A file whose first dimension is fixed to 1 is given a dynamic one first, as the server does.

use ripieno_onnx::{Declared, OnnxFile, RowVerdict, analyse_rows, open_batch};
use std::path::Path;

fn main() {
    for name in std::env::args().skip(1) {
        println!("{name}\t{}", verdict(Path::new(&name)));
    }
}

fn verdict(path: &Path) -> String {
    let read = || {
        let file = OnnxFile::read(path)?;
        match Declared::of(&file)?.no_batch {
            Some(_) => OnnxFile::parse(open_batch(&file)?, path),
            None => Ok(file),
        }
    };
    match read().map(|file| analyse_rows(&file).verdict()) {
        Ok(RowVerdict::Independent) => "independent".to_owned(),
        Ok(RowVerdict::Meet(finding)) => format!("meet\t{finding}"),
        Ok(RowVerdict::Unknown(finding)) => format!("unknown\t{finding}"),
        Err(cause) => format!("not batched\t{cause}"),
    }
}
