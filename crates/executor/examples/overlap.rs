//! Throughput of a lane that holds one task, and of one that holds two: then the next batch is
//! gathered while one computes.
//!
//! ```sh
//! cargo run --release -p ripieno-executor --example overlap -- onnxruntime MODEL.onnx 32 3 224 224
//! ```
//!
//! The numbers are the rows of a batch and the shape of a row. Engines: cpu, onnxruntime. The model
//! has one input of floats. Each engine gets one thread, so that another core is left to gather.

use bytes::Bytes;
use ripieno_base::{BlockId, LaneId, ModelId, RequestSlot, TaskId};
use ripieno_executor::{
    BlockSource, CpuEngine, CpuOptions, Device, Executor, ModelSource, OnnxRuntimeEngine, OnnxRuntimeOptions,
    RequestEntry, Task, TaskMember, TaskResult, Tensor,
};
use ripieno_model::DataType;
use std::error::Error;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const ROUND: Duration = Duration::from_secs(4);
const ROUNDS: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (engine, file) = (arguments.next().ok_or("no engine")?, arguments.next().ok_or("no model")?);
    let numbers = arguments.map(|number| number.parse::<i64>()).collect::<Result<Vec<_>, _>>()?;
    let (&rows, row_shape) = numbers.split_first().ok_or("no number of rows")?;
    let engine: Box<dyn Executor> = match engine.as_str() {
        "cpu" => Box::new(CpuEngine::new(CpuOptions { threads: 1 })),
        _ => Box::new(OnnxRuntimeEngine::new(OnnxRuntimeOptions::default())?),
    };
    let block = BlockSource { path: Some(file.into()), ..BlockSource::new("whole") };
    let model = engine.load(&ModelSource::new("overlap", vec![block], rows as usize))?;
    let (sender, results) = channel();
    let device = engine.open(1, Arc::new(move |result| drop(sender.send(result))))?;
    device.attach(ModelId(0), Arc::clone(&model));
    let entries = entries(&model.inputs()[0].name, rows, row_shape);
    for round in 0..ROUNDS {
        for held in [1, 2] {
            let before = device.spent();
            let (tasks, took) = drive(&*device, &results, &entries, held)?;
            let spent = device.spent();
            let part = |ns: u64| 100.0 * ns as f64 / took.as_nanos() as f64;
            println!(
                "round {round}, {held} held: {:9.0} rows/s, {:9.0} ns a task, gather {:4.1} %, compute {:4.1} %",
                tasks as f64 * rows as f64 / took.as_secs_f64(),
                took.as_nanos() as f64 / tasks as f64,
                part(spent.gather_ns - before.gather_ns),
                part(spent.compute_ns - before.compute_ns),
            );
        }
    }
    Ok(())
}

/// Returns a request of one row for each row of the batch.
fn entries(input: &str, rows: i64, row_shape: &[i64]) -> Vec<Arc<RequestEntry>> {
    let elements = row_shape.iter().product::<i64>() as usize;
    let shape: Vec<i64> = [1].iter().chain(row_shape).copied().collect();
    let entry = |row: i64| {
        let data = Bytes::from(vec![row as u8 % 7; 4 * elements]);
        let tensor = Tensor { name: input.into(), datatype: DataType::Fp32, shape: shape.clone(), data };
        Arc::new(RequestEntry::of([tensor].into()))
    };
    (0..rows).map(entry).collect()
}

/// Keeps `held` tasks at the device for a while. Returns the number of tasks and their time.
fn drive(
    device: &dyn Device,
    results: &Receiver<TaskResult>,
    entries: &[Arc<RequestEntry>],
    held: u32,
) -> Result<(u32, Duration), Box<dyn Error>> {
    let submit = |id: u32| {
        let member = |(slot, entry): (usize, &Arc<RequestEntry>)| {
            TaskMember::new(RequestSlot(slot as u32), 1, Some(Arc::clone(entry)))
        };
        let members = entries.iter().enumerate().map(member).collect();
        let (model, block, lane) = (ModelId(0), BlockId(0), LaneId(0));
        device.submit(Task { id: TaskId(id), model, block, lane, length: 1, members, not_before: None })
    };
    let begun = Instant::now();
    let mut sent = 0;
    for _ in 0..held {
        submit(sent).map_err(|_| "the lane is full")?;
        sent += 1;
    }
    let mut done = 0;
    while done < sent {
        results.recv()?.whole()?;
        done += 1;
        if begun.elapsed() < ROUND {
            submit(sent).map_err(|_| "the lane is full")?;
            sent += 1;
        }
    }
    Ok((done, begun.elapsed()))
}
