//! Spans of calls and of their batches, put together from the flight recorder.

use super::calls::{SampledCall, Telemetry};
use opentelemetry::trace::{Link, Span as _, SpanContext, SpanKind, Status, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, Span};
use ripieno_base::{Nanos, Time};
use ripieno_runtime::history::{CallRecord, History, TaskRecord};
use ripieno_runtime::{Ending, FlightFollower, FlightRecorder};
use std::collections::HashMap;
use std::time::{Duration, SystemTime};

/// Time for which a call and its batches are kept.
const KEPT: Nanos = Nanos::from_millis(60_000);

/// The spans in the making.
pub(super) struct CallSpans {
    tracer: SdkTracer,
    history: History,
    follower: FlightFollower,
    /// An instant on both clocks.
    anchor: (Time, SystemTime),
    /// Spans of calls that have not ended, by the call's number.
    open: HashMap<u64, Span>,
    /// Spans of batches, by the task's number.
    batches: HashMap<u64, SpanContext>,
}

impl CallSpans {
    pub(super) fn new(telemetry: &Telemetry, flight: &FlightRecorder) -> CallSpans {
        let now = flight.now();
        let (follower, history) = flight.follow(now);
        let anchor = (now, SystemTime::now());
        let tracer = telemetry.provider.tracer("ripieno");
        CallSpans { tracer, history, follower, anchor, open: HashMap::new(), batches: HashMap::new() }
    }

    fn at(&self, time: Time) -> SystemTime {
        let since = (time - self.anchor.0).0;
        let span = Duration::from_nanos(since.unsigned_abs());
        if since < 0 { self.anchor.1 - span } else { self.anchor.1 + span }
    }

    /// Sends the spans of the calls that have ended.
    pub(super) fn send(&mut self, telemetry: &Telemetry) {
        let CallSpans { history, follower, .. } = self;
        follower.read(|shard, now, entry| history.add(shard, now, &entry));
        let pending: HashMap<u64, SampledCall> = telemetry.pending.lock().clone();
        let ended = self.history.calls().filter(|call| call.tag != 0 && call.ended.is_some());
        let ended: Vec<CallRecord> = ended.filter(|call| pending.contains_key(&call.tag)).cloned().collect();
        for call in &ended {
            self.send_call(call, &pending);
        }
        let mut waiting = telemetry.pending.lock();
        ended.iter().for_each(|call| drop(waiting.remove(&call.tag)));
        waiting.retain(|_, call| call.since.elapsed().as_nanos() < KEPT.0.unsigned_abs().into());
        drop(waiting);
        self.history.forget_before(self.history.now() - KEPT);
        let (history, open, batches) = (&self.history, &mut self.open, &mut self.batches);
        open.retain(|call, _| history.call(*call).is_some());
        batches.retain(|task, _| history.task(*task).is_some());
    }

    fn send_call(&mut self, call: &CallRecord, pending: &HashMap<u64, SampledCall>) {
        let Some((ended, ending)) = call.ended else { return };
        let parent = self.call_context(call, pending);
        let context = Context::new().with_remote_span_context(parent);
        let received = pending.get(&call.tag).map_or(self.at(call.arrived), |pending| pending.received);
        let tasks: Vec<TaskRecord> = call.tasks.iter().filter_map(|&task| self.history.task(task)).cloned().collect();
        self.child("decode", received, self.at(call.arrived), &context, Vec::new());
        let started = tasks.first().map_or(ended, |task| task.started);
        self.child("queue", self.at(call.arrived), self.at(started), &context, Vec::new());
        for task in &tasks {
            let batch = self.batch_context(task, pending);
            let links = vec![Link::with_context(batch)];
            let end = task.finished.unwrap_or(ended);
            self.child("execute", self.at(task.started), self.at(end), &context, links);
        }
        let end = self.at(ended);
        if let Some(mut span) = self.open.remove(&call.number) {
            span.set_attribute(KeyValue::new("ripieno.outcome", ending.name()));
            if !matches!(ending, Ending::Ok) {
                span.set_status(Status::error(ending.name()));
            }
            span.end_with_timestamp(end);
        }
    }

    fn child(&self, name: &'static str, from: SystemTime, to: SystemTime, of: &Context, links: Vec<Link>) {
        let builder = self.tracer.span_builder(name).with_start_time(from.min(to)).with_links(links);
        self.tracer.build_with_context(builder, of).end_with_timestamp(to);
    }

    /// Returns the context of a call's span, which begins if it has none yet.
    fn call_context(&mut self, call: &CallRecord, pending: &HashMap<u64, SampledCall>) -> SpanContext {
        if let Some(span) = self.open.get(&call.number) {
            return span.span_context().clone();
        }
        let own = pending.get(&call.tag);
        let parent = own.and_then(|own| own.parent.clone());
        let context = parent.map_or_else(Context::new, |parent| Context::new().with_remote_span_context(parent));
        let start = own.map_or(self.at(call.arrived), |own| own.received);
        let model = &self.history.models()[call.model].model.name;
        let attributes = vec![
            KeyValue::new("ripieno.model", model.clone()),
            KeyValue::new("ripieno.rows", i64::from(call.rows)),
            KeyValue::new("ripieno.deadline_ms", (call.deadline - call.arrived).as_millis_f64()),
        ];
        let builder = self.tracer.span_builder(format!("infer {model}"));
        let builder = builder.with_kind(SpanKind::Server).with_start_time(start).with_attributes(attributes);
        let span = self.tracer.build_with_context(builder, &context);
        let own = span.span_context().clone();
        self.open.insert(call.number, span);
        own
    }

    /// Returns the context of a batch's span, which is sent if it was not.
    fn batch_context(&mut self, task: &TaskRecord, pending: &HashMap<u64, SampledCall>) -> SpanContext {
        if let Some(batch) = self.batches.get(&task.number) {
            return batch.clone();
        }
        let members = task.calls.iter().filter_map(|&call| self.history.call(call));
        let sampled: Vec<CallRecord> =
            members.filter(|call| call.tag != 0 && pending.contains_key(&call.tag)).cloned().collect();
        let links = sampled.iter().map(|call| Link::with_context(self.call_context(call, pending))).collect();
        let model = &self.history.models()[task.model].model;
        let block = model.blocks.get(task.block.index()).map_or(String::new(), |block| block.name.clone());
        let attributes = vec![
            KeyValue::new("ripieno.model", model.name.clone()),
            KeyValue::new("ripieno.block", block),
            KeyValue::new("ripieno.device", i64::from(task.device.0)),
            KeyValue::new("ripieno.rows", i64::from(task.rows)),
            KeyValue::new("ripieno.requests", task.calls.len() as i64),
        ];
        let builder = self.tracer.span_builder(format!("batch {}", model.name)).with_start_time(self.at(task.started));
        let builder = builder.with_attributes(attributes).with_links(links);
        let mut span = self.tracer.build_with_context(builder, &Context::new());
        span.end_with_timestamp(self.at(task.finished.unwrap_or(task.started)));
        let own = span.span_context().clone();
        self.batches.insert(task.number, own.clone());
        own
    }
}
