//! Cells of any size with random weights. They serve to measure the performance of a state size on
//! a machine, where the answers do not matter.
//!
//! They are generated here and not by a script, so that one binary suffices for measurements. A
//! decoder consumes its own tokens. It hardly ever chooses its end token, so it runs until the
//! limit in the model's settings.

use super::draft::CellDraft;
use super::text::quoted;
use crate::proto::{ModelProto, OperatorSetProto, elem};
use crate::weights::int_tensor;
use prost::Message;
use ripieno_base::Lcg;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

const OPSET: i64 = 17;
const IR_VERSION: i64 = 8;

/// A model of cells with random weights.
#[derive(Clone, Debug)]
pub struct RandomCells {
    /// Name of the model's folder in a repository.
    pub name: &'static str,
    /// Content of `model.toml`, without the limits of a deployment.
    pub settings: String,
    /// Names and files of the cells, in the order of the walk.
    pub blocks: Vec<(&'static str, Vec<u8>)>,
}

impl RandomCells {
    /// Creates "lstm", which takes a sequence of vectors of `inputs` numbers: x, FP32 [1, length,
    /// inputs].
    pub fn lstm(inputs: usize, hidden: usize, seed: u64) -> RandomCells {
        let mut cell = RandomCell::new("cell", seed);
        cell.draft.input("x", elem::FLOAT, &[inputs as i64]);
        cell.lstm("x", inputs, hidden);
        let inputs = [("x", "request"), ("h", "previous.h_next"), ("c", "previous.c_next")];
        let settings =
            settings("repeat", &[("cell", &inputs, "")], OutputText { name: "h", from: "cell.h_next", take: "last" });
        RandomCells { name: "lstm", settings, blocks: vec![("cell", cell.encode())] }
    }

    /// Creates "treelstm", which takes a binary tree: a vector of `inputs` numbers per node, and
    /// the table of children.
    pub fn tree_lstm(inputs: usize, hidden: usize, seed: u64) -> RandomCells {
        let mut leaf = RandomCell::new("leaf", seed);
        leaf.draft.input("x", elem::FLOAT, &[inputs as i64]);
        leaf.gates("x", inputs, hidden, &["i", "o", "g"]);
        leaf.draft.op("Mul", &["i", "g"], "c_next");
        leaf.write_state(hidden);
        let mut internal = RandomCell::new("internal", seed + 1);
        for state in ["h0", "c0", "h1", "c1"] {
            internal.draft.input(state, elem::FLOAT, &[hidden as i64]);
        }
        internal.draft.join(&["h0", "h1"], "h");
        internal.gates("h", 2 * hidden, hidden, &["i", "f0", "f1", "o", "g"]);
        internal.draft.op("Mul", &["f0", "c0"], "left");
        internal.draft.op("Mul", &["f1", "c1"], "right");
        internal.draft.op("Mul", &["i", "g"], "new");
        internal.draft.op("Add", &["left", "right"], "kept");
        internal.draft.op("Add", &["kept", "new"], "c_next");
        internal.write_state(hidden);
        let children =
            [("h0", "child0.h_next"), ("c0", "child0.c_next"), ("h1", "child1.h_next"), ("c1", "child1.c_next")];
        let settings = settings(
            "tree",
            &[("leaf", &[("x", "request")], ""), ("internal", &children, "")],
            OutputText { name: "h", from: "root.h_next", take: "last" },
        );
        RandomCells {
            name: "treelstm",
            settings,
            blocks: vec![("leaf", leaf.encode()), ("internal", internal.encode())],
        }
    }

    /// Creates "seq2seq", which maps a sequence of tokens to one of equal length: token, INT64 [1,
    /// length], below `vocabulary`. To choose a token, the decoder computes one more matrix
    /// product. If `vocabulary` is eight times `hidden`, the product costs as much as an LSTM
    /// cell's.
    pub fn seq2seq(vocabulary: usize, hidden: usize, seed: u64) -> RandomCells {
        let mut encoder = RandomCell::new("encoder", seed);
        encoder.look_up(vocabulary, hidden);
        encoder.lstm("e", hidden, hidden);
        let mut decoder = RandomCell::new("decoder", seed + 1);
        decoder.look_up(vocabulary, hidden);
        decoder.lstm("e", hidden, hidden);
        decoder.product("h_next", hidden, vocabulary, "logits");
        decoder.draft.arg_max("logits", "token_next");
        decoder.draft.graph.initializer.push(int_tensor("end", &[0]));
        decoder.draft.op("Equal", &["token_next", "end"], "done");
        decoder.draft.output("token_next", elem::INT64, &[]);
        decoder.draft.output("done", elem::BOOL, &[]);
        let encode = [("token", "request"), ("h", "previous.h_next"), ("c", "previous.c_next")];
        let decode = [("token", "previous.token_next"), ("h", "previous.h_next"), ("c", "previous.c_next")];
        let begin = "end = \"done\"\n[block.initial]\ntoken = 1\nh = \"encoder.h_next\"\nc = \"encoder.c_next\"\n";
        let settings = settings(
            "encode-decode",
            &[("encoder", &encode, ""), ("decoder", &decode, begin)],
            OutputText { name: "tokens", from: "decoder.token_next", take: "every" },
        );
        let settings = format!("extra_steps = 0\n{settings}");
        RandomCells {
            name: "seq2seq",
            settings,
            blocks: vec![("encoder", encoder.encode()), ("decoder", decoder.encode())],
        }
    }

    /// Writes the model into a repository. `limits` is added at the head of `model.toml`, for
    /// example `max_batch = 64`.
    pub fn write(&self, repository: &Path, limits: &str) -> io::Result<()> {
        let folder = repository.join(self.name);
        fs::create_dir_all(folder.join("1"))?;
        for (name, file) in &self.blocks {
            fs::write(folder.join("1").join(format!("{name}.onnx")), file)?;
        }
        fs::write(folder.join("model.toml"), format!("{limits}\n{}", self.settings))
    }
}

/// Name of a block, sources of its inputs, and additional lines of its section.
type BlockText<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a str);

/// Keys of the model's output in `model.toml`.
struct OutputText<'a> {
    name: &'a str,
    from: &'a str,
    take: &'a str,
}

fn settings(walk: &str, blocks: &[BlockText<'_>], output: OutputText<'_>) -> String {
    let mut text = format!("walk = {}\n", quoted(walk));
    for (block, inputs, more) in blocks {
        // TOML requires the keys of the block itself before its tables.
        let (own, tables) = more.split_at(more.find('[').unwrap_or(more.len()));
        let _ = write!(text, "\n[[block]]\nname = {}\n{own}[block.inputs]\n", quoted(block));
        for (input, from) in *inputs {
            let _ = writeln!(text, "{} = {}", quoted(input), quoted(from));
        }
        text.push_str(tables);
    }
    let OutputText { name, from, take } = output;
    let _ = write!(text, "\n[[output]]\nname = {}\nfrom = {}\ntake = \"{take}\"\n", quoted(name), quoted(from));
    text
}

struct RandomCell {
    draft: CellDraft,
    random: Lcg,
}

impl RandomCell {
    fn new(name: &str, seed: u64) -> RandomCell {
        RandomCell { draft: CellDraft::named(name, OPSET), random: Lcg::new(seed.wrapping_mul(2).wrapping_add(1)) }
    }

    /// Returns a random number between -1 and 1.
    fn number(&mut self) -> f32 {
        (self.random.bits() >> 8) as f32 / (1 << 23) as f32 - 1.0
    }

    /// Adds a random matrix. It is scaled so that its products are about as large as their inputs.
    fn matrix(&mut self, name: &str, rows: usize, columns: usize) {
        let scale = (3.0 / rows as f32).sqrt();
        let elements: Vec<f32> = (0..rows * columns).map(|_| self.number() * scale).collect();
        self.draft.matrix(name, rows, &elements);
    }

    fn product(&mut self, from: &str, rows: usize, columns: usize, to: &str) {
        let (weight, bias) = (format!("{to}_w"), format!("{to}_b"));
        self.matrix(&weight, rows, columns);
        self.draft.vector(&bias, &vec![0.0; columns]);
        self.draft.op("Gemm", &[from, &weight, &bias], to);
    }

    fn look_up(&mut self, vocabulary: usize, size: usize) {
        self.draft.input("token", elem::INT64, &[]);
        self.matrix("embedding", vocabulary, size);
        self.draft.op("Gather", &["embedding", "token"], "e");
    }

    /// Adds the gates by name. The last gate is the new content and uses tanh instead of a sigmoid.
    fn gates(&mut self, from: &str, inputs: usize, hidden: usize, names: &[&str]) {
        self.product(from, inputs, names.len() * hidden, "sums");
        let sums: Vec<String> = names.iter().map(|name| format!("{name}_sum")).collect();
        self.draft.split("sums", &sums.iter().map(String::as_str).collect::<Vec<_>>(), hidden);
        for (at, (sum, name)) in sums.iter().zip(names).enumerate() {
            self.draft.op(if at + 1 < names.len() { "Sigmoid" } else { "Tanh" }, &[sum], name);
        }
    }

    fn lstm(&mut self, x: &str, inputs: usize, hidden: usize) {
        for state in ["h", "c"] {
            self.draft.input(state, elem::FLOAT, &[hidden as i64]);
        }
        self.draft.join(&[x, "h"], "xh");
        self.gates("xh", inputs + hidden, hidden, &["i", "f", "o", "g"]);
        self.draft.op("Mul", &["f", "c"], "kept");
        self.draft.op("Mul", &["i", "g"], "new");
        self.draft.op("Add", &["kept", "new"], "c_next");
        self.write_state(hidden);
    }

    /// Adds the new state, for which the inner part must exist.
    fn write_state(&mut self, hidden: usize) {
        self.draft.op("Tanh", &["c_next"], "c_tanh");
        self.draft.op("Mul", &["o", "c_tanh"], "h_next");
        for state in ["h_next", "c_next"] {
            self.draft.output(state, elem::FLOAT, &[hidden as i64]);
        }
    }

    fn encode(self) -> Vec<u8> {
        let opset_import = vec![OperatorSetProto { domain: String::new(), version: OPSET }];
        let graph = Some(self.draft.graph);
        ModelProto { ir_version: IR_VERSION, opset_import, graph, ..ModelProto::default() }.encode_to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{NamedTensors, numbers, run};
    use rten_tensor::{AsView, Layout};

    /// Runs a cell in rten and checks that all outputs are within the range of gates.
    #[track_caller]
    fn check(file: &[u8], inputs: &[(&str, usize)], hidden: usize) {
        let given: NamedTensors = inputs.iter().map(|&(name, size)| (name.to_owned(), numbers(&[3, size]))).collect();
        let given = run(file.to_vec(), &given, &["h_next".to_owned(), "c_next".to_owned()]);
        for tensor in given.values() {
            assert_eq!(tensor.shape(), [3, hidden]);
        }
        let h: Vec<f32> = given["h_next"].iter().copied().collect();
        assert!(h.iter().all(|h| h.abs() < 1.0) && h.iter().any(|h| h.abs() > 0.01), "{h:?}");
    }

    #[test]
    fn cells_of_random_weights_run() {
        let model = RandomCells::lstm(5, 8, 1);
        check(&model.blocks[0].1, &[("x", 5), ("h", 8), ("c", 8)], 8);
        let model = RandomCells::tree_lstm(5, 8, 1);
        check(&model.blocks[0].1, &[("x", 5)], 8);
        check(&model.blocks[1].1, &[("h0", 8), ("c0", 8), ("h1", 8), ("c1", 8)], 8);
    }

    #[test]
    fn settings_name_every_block_and_where_its_inputs_come_from() {
        let text = RandomCells::seq2seq(16, 4, 1).settings;
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part} is missing in {text}"));
        assert!(at("walk = \"encode-decode\"") < at("name = \"encoder\""));
        assert!(at("name = \"decoder\"") < at("end = \"done\"") && at("end = \"done\"") < at("[block.initial]"));
        assert!(text.ends_with("[[output]]\nname = \"tokens\"\nfrom = \"decoder.token_next\"\ntake = \"every\"\n"));
    }
}
