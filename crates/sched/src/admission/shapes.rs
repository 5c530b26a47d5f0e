//! Separation of requests by shape, so that different shapes never share a batch, under any policy.
//!
//! To the policy, requests of one model that differ in shape are requests of different models. Each
//! shape in use becomes a *variant*: a further model of the policy with the same blocks. A variant
//! is loaded with its first request and unloaded when it is unused and its place is needed. So no
//! policy has to know of shapes, and each estimates rates and forms batches by shape.
//! [`Shape::ALONE`] is a variant whose batches hold one request.
//!
//! The alternative, a shape as a key of every queue, was rejected: each of the policies would have
//! to respect it, in gathering, in joining and in estimates, and an omission would fail users'
//! requests.
//!
//! Each request states the factor of its cost ([`CostScale`]). A variant has its model's profile
//! times that factor, and so does the model itself for the first shape. The profile is replaced if
//! a request's factor differs by [`RESCALES`] steps or more.
//!
//! There is room for [`VARIANTS`] of all models together. Beyond it a request joins the model's own
//! batches, and the driver's device runs such a batch in parts: slower than necessary, never wrong.

use crate::{
    Action, Control, CostScale, Limits, NetworkDelay, Outbox, Request, Scheduler, SchedulerLayer, Shape, TaskDone,
};
use ripieno_base::{BlockId, ModelId, Time};
use ripieno_model::Model;

/// Number of variants of all models.
pub(crate) const VARIANTS: usize = 64;
/// Number of variants that are kept free for new shapes, as long as there are unused ones.
const SPARE: usize = 8;
/// Difference between the factor in force and a request's factor at which the profile is replaced,
/// in steps of [`CostScale`]: about 19 %.
const RESCALES: u8 = 2;
/// A request or task of no variant.
const NONE: u16 = u16::MAX;

/// A policy that sees each shape of a model as a model of its own.
pub struct Shapes {
    /// The policy.
    policy: Box<dyn Scheduler>,
    /// The models as loaded, by id, from which variants are made.
    models: Vec<Option<Box<Model>>>,
    /// The factor in force of each model itself.
    scales: Vec<CostScale>,
    /// The measured time to gather batches of each model, if there is one.
    gathers: Vec<Option<NetworkDelay>>,
    /// The variants.
    variants: Vec<Variant>,
    /// The id of the first variant.
    first: usize,
    /// Distance between the ids of variants. With it the variants of a model belong to the model's
    /// shard.
    step: usize,
    /// Number of variants in use, loaded or leaving.
    taken: usize,
    /// Variant of each live request.
    of_request: Vec<u16>,
    /// Variant of each task in flight.
    of_task: Vec<u16>,
    /// Counter of requests with a variant; the last used variant has the largest number.
    uses: u64,
}

/// A model of the policy that represents one shape.
#[derive(Clone, Copy, Debug)]
struct Variant {
    /// The shape; `None` if the variant is free.
    key: Option<Key>,
    /// True if the variant's model has been unloaded: it is freed when its last request and task
    /// have ended.
    leaving: bool,
    /// Number of live requests.
    requests: u32,
    /// Number of tasks in flight.
    tasks: u32,
    /// Value of the counter of uses at the last request.
    used: u64,
    /// The factor in force.
    scale: CostScale,
}

/// The common properties of a variant's requests. Requests that run alone have a batch size of
/// their own rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    /// Model of the requests.
    model: ModelId,
    /// Shape of the requests.
    shape: Shape,
    /// Rows of a request that runs alone; else 0.
    rows: u32,
}

impl Key {
    fn of(request: &Request) -> Key {
        let shape = request.class.shape;
        Key { model: request.model, shape, rows: if shape == Shape::ALONE { request.rows } else { 0 } }
    }

    /// Returns the model that the policy sees.
    fn model(self, model: &Model, scale: CostScale) -> Model {
        let max_batch = if self.shape == Shape::ALONE { self.rows as usize } else { model.max_batch };
        let mut model = Model { max_batch, ..model.clone() };
        model.blocks.iter_mut().for_each(|block| scale.apply(block));
        model
    }
}

const FREE: Variant = Variant { key: None, leaving: false, requests: 0, tasks: 0, used: 0, scale: CostScale::PROFILED };

impl Shapes {
    /// Returns the limits for which the policy is to be built. They are the driver's, with more
    /// models, which divide evenly over `shards` shards.
    pub fn widen(limits: &Limits, shards: usize) -> Limits {
        Limits { models: limits.models.next_multiple_of(shards) + VARIANTS * shards, ..*limits }
    }

    /// Creates the layer for the shard with this number among `shards`. `policy` must have been
    /// built for the same models, and for the limits that [`Shapes::widen`] returns.
    pub fn new(
        policy: Box<dyn Scheduler>,
        models: &[Model],
        limits: &Limits,
        (number, shards): (usize, usize),
    ) -> Shapes {
        let mut known: Vec<_> = models.iter().map(|model| Some(Box::new(model.clone()))).collect();
        known.resize(limits.models, None);
        Shapes {
            policy,
            scales: vec![CostScale::PROFILED; known.len()],
            gathers: vec![None; known.len()],
            models: known,
            variants: vec![FREE; VARIANTS],
            first: limits.models.next_multiple_of(shards) + number,
            step: shards,
            taken: 0,
            of_request: vec![NONE; limits.requests],
            of_task: Vec::with_capacity(2 * limits.tasks()),
            uses: 0,
        }
    }

    fn id(&self, variant: usize) -> ModelId {
        ModelId((self.first + variant * self.step) as u16)
    }

    /// Returns the variant for a request, loaded if necessary; `None` if it joins the model's own
    /// batches.
    fn variant(&mut self, now: Time, request: &Request) -> Option<usize> {
        let key = Key::of(request);
        if key.shape == Shape::default() {
            return None;
        }
        let known = self.variants.iter().position(|variant| variant.key == Some(key) && !variant.leaving);
        known.or_else(|| {
            let free = self.variants.iter().position(|variant| variant.key.is_none())?;
            let scale = request.class.cost;
            let model = key.model(self.models[key.model.index()].as_ref()?, scale);
            self.variants[free] = Variant { key: Some(key), scale, ..FREE };
            self.taken += 1;
            self.policy.on_control(now, Control::ModelLoaded(self.id(free), Box::new(model)));
            if let Some(delay) = self.gathers[key.model.index()] {
                self.policy.on_control(now, Control::GatherMeasured(self.id(free), delay));
            }
            Some(free)
        })
    }

    /// Replaces the profiles of a shape if they differ too much from what its requests cost.
    /// `variant` is `None` for the shape of the model itself.
    fn rescale(&mut self, now: Time, request: &Request, variant: Option<usize>) {
        let (model, scale) = (request.model, request.class.cost);
        let (id, in_force) = match variant {
            Some(variant) => (self.id(variant), &mut self.variants[variant].scale),
            // Without a variant, a request of another shape says nothing about the costs of the
            // model's own.
            None if request.class.shape != Shape::default() => return,
            None => (model, &mut self.scales[model.index()]),
        };
        if in_force.distance(scale) < RESCALES {
            return;
        }
        *in_force = scale;
        let blocks = &self.models[model.index()].as_ref().expect("a model stays while its requests live").blocks;
        for (block, spec) in (0..).map(BlockId).zip(blocks) {
            let profile = scale.of_profile(&spec.profile);
            self.policy.on_control(now, Control::ProfileReplaced { model: id, block, profile });
        }
    }

    /// Makes room for new shapes: unused variants are unloaded, the least recently used first.
    fn make_room(&mut self, now: Time) {
        while self.taken + SPARE > VARIANTS {
            let idle = |(_, variant): &(usize, &Variant)| {
                variant.key.is_some() && !variant.leaving && variant.requests + variant.tasks == 0
            };
            let unused = self.variants.iter().enumerate().filter(idle).min_by_key(|(_, variant)| variant.used);
            let Some((variant, _)) = unused else { return };
            self.retire(now, variant);
            self.taken -= 1;
        }
    }

    fn retire(&mut self, now: Time, variant: usize) {
        self.variants[variant].leaving = true;
        self.policy.on_control(now, Control::ModelUnloaded(self.id(variant)));
    }

    /// Frees variants that have been unloaded.
    fn clear(&mut self) {
        for variant in &mut self.variants {
            if variant.leaving && variant.requests + variant.tasks == 0 {
                *variant = FREE;
            }
        }
        self.taken = self.variants.iter().filter(|variant| variant.key.is_some()).count();
    }

    /// Returns the loaded variants of a model.
    fn of_model(&self, model: ModelId) -> Vec<usize> {
        let own = |variant: &Variant| !variant.leaving && variant.key.is_some_and(|key| key.model == model);
        self.variants.iter().enumerate().filter(|(_, variant)| own(variant)).map(|(at, _)| at).collect()
    }

    /// Replaces variants by the driver's models in actions, and counts their requests and tasks.
    fn translate(&mut self, out: &mut Outbox) {
        let (first, step) = (self.first, self.step);
        for action in out.actions_mut() {
            match action {
                Action::Start { task, model, .. } if model.index() >= first => {
                    let variant = (model.index() - first) / step;
                    let held = &mut self.variants[variant];
                    held.tasks += 1;
                    *model = held.key.expect("a variant with tasks stands for a shape").model;
                    if self.of_task.len() <= task.index() {
                        self.of_task.resize(task.index() + 1, NONE);
                    }
                    self.of_task[task.index()] = variant as u16;
                }
                Action::Finish { request } | Action::Reject { request, .. } => {
                    let variant = std::mem::replace(&mut self.of_request[request.index()], NONE);
                    if let Some(variant) = self.variants.get_mut(usize::from(variant)) {
                        variant.requests -= 1;
                    }
                }
                Action::Start { .. } | Action::Cancel { .. } => {}
            }
        }
    }
}

impl SchedulerLayer for Shapes {
    fn inner(&self) -> &dyn Scheduler {
        self.policy.as_ref()
    }

    fn inner_mut(&mut self) -> &mut dyn Scheduler {
        self.policy.as_mut()
    }

    fn on_request(&mut self, now: Time, request: &Request) {
        let variant = self.variant(now, request);
        self.rescale(now, request, variant);
        let Some(variant) = variant else { return self.policy.on_request(now, request) };
        self.uses += 1;
        let held = &mut self.variants[variant];
        (held.requests, held.used) = (held.requests + 1, self.uses);
        self.of_request[request.slot.index()] = variant as u16;
        self.policy.on_request(now, &Request { model: self.id(variant), ..*request });
    }

    fn on_task_done(&mut self, now: Time, done: &TaskDone<'_>) {
        if let Some(variant) = self.of_task.get_mut(done.task.index()) {
            let variant = std::mem::replace(variant, NONE);
            if let Some(variant) = self.variants.get_mut(usize::from(variant)) {
                variant.tasks -= 1;
            }
        }
        self.policy.on_task_done(now, done);
    }

    fn on_control(&mut self, now: Time, control: Control) {
        match &control {
            Control::ModelLoaded(id, model) => {
                (self.models[id.index()], self.scales[id.index()]) = (Some(model.clone()), CostScale::PROFILED);
                self.gathers[id.index()] = None;
            }
            Control::ModelUnloaded(id) => {
                self.models[id.index()] = None;
                for variant in self.of_model(*id) {
                    self.retire(now, variant);
                }
            }
            Control::ProfileReplaced { model, block, profile } => {
                let known = self.models[model.index()].as_mut().expect("the model is loaded");
                known.blocks[block.index()].replace_profile(profile.clone());
                for variant in self.of_model(*model) {
                    let profile = self.variants[variant].scale.of_profile(profile);
                    let (model, block) = (self.id(variant), *block);
                    self.policy.on_control(now, Control::ProfileReplaced { model, block, profile });
                }
                let (model, block, profile) = (*model, *block, self.scales[model.index()].of_profile(profile));
                return self.policy.on_control(now, Control::ProfileReplaced { model, block, profile });
            }
            Control::GatherMeasured(model, delay) => {
                self.gathers[model.index()] = Some(*delay);
                for variant in self.of_model(*model) {
                    self.policy.on_control(now, Control::GatherMeasured(self.id(variant), *delay));
                }
            }
            Control::DeviceJoined(_)
            | Control::DeviceLeft(_)
            | Control::DeviceSlowed { .. }
            | Control::Cancelled(_)
            | Control::NetworkDelayed(_) => {}
        }
        self.policy.on_control(now, control);
    }

    fn settle(&mut self, now: Time, out: &mut Outbox) {
        if self.taken == 0 {
            return self.policy.settle(now, out);
        }
        self.make_room(now);
        self.policy.settle(now, out);
        self.translate(out);
        self.clear();
    }
}
