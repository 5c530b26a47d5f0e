//! Steps written in Python: functions with state, which become cells.
//!
//! A file says less than a model.toml. A function with state is one step, and arrays flow by name.
//! So the walk and the source of each input follow from the order of the functions and their names.
//! A model.toml may say the same, to give a cell a priority or a largest batch. If it says
//! something else, the model is refused.

use super::protocol::{Declaration, DeclaredBlock};
use crate::{
    AnswerSource, AnswerSteps, BlockSource, Initial, InputLink, InputSource, LengthDims, ModelSource, StepLimit,
};
use ripieno_base::BlockId;
use ripieno_model::{Steps, Walk};

/// Whether a function of the file is a step.
pub(super) fn has_steps(declared: &Declaration) -> bool {
    declared.blocks.iter().any(|block| !block.state.is_empty())
}

/// Turns the functions of a file with steps into cells.
pub(super) fn adopt(source: &mut ModelSource, declared: &Declaration) -> Result<(), String> {
    let walk = walk(&declared.blocks)?;
    check_states(&declared.blocks)?;
    let blocks = (0..declared.blocks.len()).map(|at| cell(source, &declared.blocks, at));
    let (blocks, answers) = (blocks.collect::<Vec<_>>(), answers(&declared.blocks));
    if answers.is_empty() {
        return Err("no output of its functions is left for clients; declare one in outputs".to_owned());
    }
    if source.walk != Walk::Whole && !is_same(source, walk, &blocks, &answers) {
        return Err("its configuration describes other blocks than the state of its functions does; remove walk, \
                    [[block]] and [[output]]"
            .to_owned());
    }
    (source.walk, source.blocks, source.answers) = (walk, blocks, answers);
    source.lengths = LengthDims::default();
    if declared.max_length > 0 {
        source.max_length = declared.max_length;
    }
    if declared.max_steps > 0 {
        source.limit = StepLimit::Fixed(declared.max_steps);
        if !source.blocks.iter().any(|block| block.steps == Steps::Length) {
            // Without a sequence, the largest request is the one with the most steps.
            source.max_length = declared.max_steps;
        }
    }
    Ok(())
}

fn steps(block: &DeclaredBlock) -> Steps {
    match (&block.ended, &block.state[..]) {
        (Some(_), _) => Steps::UntilEnd,
        (None, []) => Steps::Once,
        (None, _) => Steps::Length,
    }
}

fn walk(blocks: &[DeclaredBlock]) -> Result<Walk, String> {
    let of = |wanted: Steps| blocks.iter().filter(move |block| steps(block) == wanted).map(|block| &block.name);
    let (ends, lengths) = (of(Steps::UntilEnd).collect::<Vec<_>>(), of(Steps::Length).count());
    match (&ends[..], lengths) {
        ([one, other, ..], _) => Err(format!("functions '{one}' and '{other}' both run until their end; one can")),
        ([decoder], _) => {
            let decoder_at = blocks.iter().position(|block| block.ended.is_some()).unwrap_or(0);
            let late = blocks[decoder_at..].iter().find(|block| steps(block) == Steps::Length);
            match late {
                Some(late) => Err(format!(
                    "function '{}' steps along the request and stands after '{decoder}', which runs until its end; put it before",
                    late.name
                )),
                None => Ok(Walk::EncodeDecode),
            }
        }
        ([], 1) => Ok(Walk::Repeat),
        ([], _) => Ok(Walk::Stacked),
    }
}

/// Refuses a state with the name of an array of an earlier step along the same request. Two layers
/// with states of one name are likelier than a layer that begins as the one before has ended.
fn check_states(blocks: &[DeclaredBlock]) -> Result<(), String> {
    for (at, block) in blocks.iter().enumerate().filter(|(_, block)| steps(block) == Steps::Length) {
        for name in &block.state {
            let gives = |other: &&DeclaredBlock| {
                steps(other) == Steps::Length && other.outputs.iter().any(|output| output.name == *name)
            };
            if let Some(other) = blocks[..at].iter().find(gives) {
                return Err(format!(
                    "state '{name}' of function '{}' has the name of an array of function '{}'; rename one of them",
                    block.name, other.name
                ));
            }
        }
    }
    Ok(())
}

/// Returns the cell of a function, with the settings that the source has for it.
fn cell(source: &ModelSource, blocks: &[DeclaredBlock], at: usize) -> BlockSource {
    let function = &blocks[at];
    let known = source.blocks.iter().find(|block| block.name == function.name);
    let base = known.or(source.blocks.first()).cloned().unwrap_or_else(|| BlockSource::new(&function.name));
    let links = function.inputs.iter().map(|input| {
        let giver = (0..at).rev().find(|&from| blocks[from].outputs.iter().any(|output| output.name == input.name));
        let (name, giver) = (input.name.clone(), giver.map(|from| (from, BlockId(from as u16))));
        let (from, initial) = match giver {
            giver if function.state.contains(&name) => {
                let number = (input.initial != 0.0).then_some(Initial::Number(input.initial));
                let last = giver.map(|(_, block)| Initial::Last(block, name.clone()));
                (InputSource::Previous(name.clone()), last.or(number))
            }
            Some((from, block)) if [from, at].iter().all(|&at| steps(&blocks[at]) == Steps::Length) => {
                (InputSource::Step(block, name.clone()), None)
            }
            Some((_, block)) => (InputSource::Last(block, name.clone()), None),
            None => (InputSource::Request(name.clone()), None),
        };
        InputLink { input: name, from, initial }
    });
    BlockSource {
        name: function.name.clone(),
        steps: steps(function),
        priority: known.map_or(at as u32, |block| block.priority),
        links: links.collect(),
        end: function.ended.clone(),
        ..base
    }
}

/// Returns the outputs that no later function takes. Of a step, clients get them for every step.
fn answers(blocks: &[DeclaredBlock]) -> Vec<AnswerSource> {
    let mut answers: Vec<AnswerSource> = Vec::new();
    for (at, block) in blocks.iter().enumerate() {
        answers.retain(|answer| !block.inputs.iter().any(|input| input.name == answer.name));
        for output in block.outputs.iter().filter(|output| !block.hidden.contains(&output.name)) {
            let name = output.name.clone();
            answers.retain(|answer| answer.name != name);
            let take = if steps(block) == Steps::Once { AnswerSteps::Last } else { AnswerSteps::Every };
            answers.push(AnswerSource { tensor: name.clone(), name, block: Some(BlockId(at as u16)), take });
        }
    }
    answers
}

/// Whether the source already has these cells, up to their settings.
fn is_same(source: &ModelSource, walk: Walk, blocks: &[BlockSource], answers: &[AnswerSource]) -> bool {
    let alike = |(one, other): (&BlockSource, &BlockSource)| {
        let linked = |input: &InputLink| {
            let given = one.links.iter().find(|link| link.input == input.input);
            given.map_or(input.from == InputSource::Request(input.input.clone()), |link| link == input)
        };
        (&one.name, one.steps, &one.end) == (&other.name, other.steps, &other.end) && other.links.iter().all(linked)
    };
    source.walk == walk
        && source.blocks.len() == blocks.len()
        && source.blocks.iter().zip(blocks).all(alike)
        && source.answers == answers
}

#[cfg(test)]
mod tests {
    use super::super::protocol::DeclaredTensor;
    use super::*;

    fn function(name: &str, inputs: &[&str], outputs: &[&str], state: &[&str], ended: Option<&str>) -> DeclaredBlock {
        let tensors = |names: &[&str]| {
            let tensor = |name: &&str| DeclaredTensor { name: (*name).to_owned(), ..DeclaredTensor::default() };
            names.iter().map(tensor).collect::<Vec<_>>()
        };
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let ends: Vec<&str> = ended.into_iter().collect();
        let hidden: Vec<&str> = [state, &ends].concat().into_iter().filter(|name| !outputs.contains(name)).collect();
        DeclaredBlock {
            name: name.to_owned(),
            inputs: tensors(&[inputs, state].concat()),
            outputs: tensors(&[outputs, &hidden].concat()),
            state: owned(state),
            ended: ended.map(str::to_owned),
            hidden: owned(&hidden),
        }
    }

    fn adopted(blocks: Vec<DeclaredBlock>) -> Result<ModelSource, String> {
        let mut source = ModelSource::new("m", vec![BlockSource::new("model")], 4);
        let declared = Declaration { blocks, max_steps: 9, ..Declaration::default() };
        adopt(&mut source, &declared)?;
        let again = source.clone();
        adopt(&mut source, &declared)?;
        assert_eq!(
            (&source.blocks[0].links, source.walk),
            (&again.blocks[0].links, again.walk),
            "again changes nothing"
        );
        Ok(source)
    }

    fn link(input: &str, from: InputSource, initial: Option<Initial>) -> InputLink {
        InputLink { input: input.to_owned(), from, initial }
    }

    #[test]
    fn arrays_flow_by_name_and_state_begins_as_the_last_of_an_earlier_function() {
        let encode = function("encode", &["x"], &["y"], &["h"], None);
        let decode = function("decode", &["y", "z"], &["token"], &["h", "token"], Some("done"));
        let source = adopted(vec![encode, decode, function("head", &["token", "h"], &["best"], &[], None)]).unwrap();
        assert_eq!((source.walk, source.limit), (Walk::EncodeDecode, StepLimit::Fixed(9)));
        let steps: Vec<Steps> = source.blocks.iter().map(|block| block.steps).collect();
        assert_eq!(steps, [Steps::Length, Steps::UntilEnd, Steps::Once]);
        let (request, previous) =
            (|name: &str| InputSource::Request(name.into()), |name: &str| InputSource::Previous(name.into()));
        let last = |block: u16, name: &str| (BlockId(block), name.to_owned());
        let begins = last(0, "h");
        assert_eq!(
            source.blocks[1].links,
            [
                link("y", InputSource::Last(last(0, "y").0, last(0, "y").1), None),
                link("z", request("z"), None),
                link("h", previous("h"), Some(Initial::Last(begins.0, begins.1))),
                link("token", previous("token"), None),
            ]
        );
        let answers: Vec<(&str, AnswerSteps)> =
            source.answers.iter().map(|answer| (&*answer.name, answer.take)).collect();
        assert_eq!(answers, [("best", AnswerSteps::Last)], "what a later function takes is no answer");
    }

    #[test]
    fn layers_take_the_same_step_and_a_loop_alone_is_a_walk() {
        let layers = vec![function("one", &["x"], &["y"], &["h"], None), function("two", &["y"], &["z"], &["g"], None)];
        let source = adopted(layers).unwrap();
        assert_eq!(source.walk, Walk::Stacked);
        assert_eq!(source.blocks[1].links[0], link("y", InputSource::Step(BlockId(0), "y".into()), None));
        let source = adopted(vec![function("run", &["x"], &["y"], &["h"], Some("done"))]).unwrap();
        assert_eq!((source.walk, source.max_length), (Walk::EncodeDecode, 9));
        let twice = vec![function("one", &["x"], &["y"], &["h"], None), function("two", &["y"], &["z"], &["h"], None)];
        assert!(adopted(twice).unwrap_err().contains("state 'h' of function 'two'"));
    }

    #[test]
    fn a_configuration_that_says_something_else_is_refused() {
        let declared =
            Declaration { blocks: vec![function("one", &["x"], &["y"], &["h"], None)], ..Declaration::default() };
        let told = |change: &dyn Fn(&mut ModelSource)| {
            let mut source = ModelSource::new("m", vec![BlockSource::new("model")], 4);
            adopt(&mut source, &declared).unwrap();
            change(&mut source);
            adopt(&mut source, &declared)
        };
        assert!(
            told(&|source| source.blocks[0].links.remove(0).input.clear()).is_ok(),
            "an input comes from the request"
        );
        assert!(told(&|source| source.blocks[0].priority = 7).is_ok());
        assert!(told(&|source| source.blocks[0].links.clear()).is_err());
        assert!(told(&|source| source.answers.clear()).is_err());
        assert!(told(&|source| source.walk = Walk::Chain).is_err());
    }
}
