//! Output of cells in the format of `model.toml`.

use super::RecurrentCells;
use std::fmt::Write;

impl RecurrentCells {
    /// Returns walk, blocks and outputs as sections of `model.toml`.
    pub fn to_toml(&self) -> String {
        let mut text = format!("walk = \"{}\"\n", self.walk);
        for cell in &self.blocks {
            let once = if cell.once { "once = true\n" } else { "" };
            let _ = write!(text, "\n[[block]]\nname = {}\n{once}[block.inputs]\n", quoted(&cell.name));
            for (input, from) in &cell.inputs {
                let _ = writeln!(text, "{} = {}", quoted(input), quoted(from));
            }
        }
        for answer in &self.outputs {
            let take = if answer.every { "every" } else { "last" };
            let (name, from) = (quoted(&answer.name), quoted(&answer.from));
            let _ = write!(text, "\n[[output]]\nname = {name}\nfrom = {from}\ntake = \"{take}\"\n");
        }
        text
    }
}

/// Returns the text as a TOML string.
pub(crate) fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control.is_control() => drop(write!(quoted, "\\u{:04X}", u32::from(control))),
            plain => quoted.push(plain),
        }
    }
    quoted + "\""
}
