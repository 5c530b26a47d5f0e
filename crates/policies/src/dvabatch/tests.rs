use crate::build;
use ripieno_base::{BlockId, DeviceId, ModelId, Nanos, RequestSlot, TaskId, Time};
use ripieno_model::{Block, Extent, LengthProfiles, Model, Profile, Walk};
use ripieno_sched::{
    Action, Control, Limits, OptionValue, Options, Outbox, Outcome, Request, RequestClass, Scheduler, Setup, TaskDone,
};

/// A scheduler whose tasks end when a test ends them.
struct Driver {
    dva: Box<dyn Scheduler>,
    out: Outbox,
    /// Per lane, the task that was started there last.
    tasks: [TaskId; 4],
    /// Starts as lane, stage and members, and answers as outcome and request, since the last call.
    seen: Vec<String>,
}

/// Stages with a latency in ms for each batch size up to 4.
fn chain(stages: &[[i64; 4]]) -> Model {
    let profile = |table: &[i64; 4]| Profile::from_table(&table.map(Nanos::from_millis)).unwrap();
    let blocks: Vec<_> = stages.iter().map(|table| Block::new("stage", profile(table))).collect();
    Model { blocks, walk: Walk::Chain, ..Model::whole("m", profile(&[1; 4]), Nanos::from_millis(1_000)) }
}

fn ms(millis: i64) -> Time {
    Time::ORIGIN + Nanos::from_millis(millis)
}

impl Driver {
    fn new(models: Vec<Model>, lanes: usize, options: &[(&str, &str)]) -> Driver {
        let limits = Limits { requests: 16, models: models.len(), lanes, batch: 4, ..Limits::ONE };
        let value = |text: &str| text.parse().map_or_else(|_| OptionValue::Text(text.to_owned()), OptionValue::Int);
        let options: Options = options.iter().map(|&(name, text)| (name.to_owned(), value(text))).collect();
        let dva = build("dva", &Setup { models, devices: 1, limits }, &options).unwrap();
        Driver { dva, out: Outbox::new(&limits), tasks: [TaskId(0); 4], seen: Vec::new() }
    }

    fn arrive(&mut self, now: i64, slots: std::ops::Range<u32>, model: u16, slo_ms: i64) {
        slots.for_each(|slot| self.request(now, slot, model, 1, slo_ms));
    }

    fn arrive_long(&mut self, now: i64, slots: std::ops::Range<u32>, length: u32, slo_ms: i64) {
        slots.for_each(|slot| self.request(now, slot, 0, length, slo_ms));
    }

    fn request(&mut self, now: i64, slot: u32, model: u16, length: u32, slo_ms: i64) {
        let (arrived, deadline) = (ms(now), ms(now + slo_ms));
        let (slot, model, extent) = (RequestSlot(slot), ModelId(model), Extent { length, limit: 0 });
        self.dva.on_request(
            arrived,
            &Request { slot, model, arrived, deadline, rows: 1, extent, class: RequestClass::default() },
        );
    }

    fn end(&mut self, now: i64, lane: u32, outcome: Outcome, ended: &[bool], skips: &[u16]) {
        let skips: Vec<_> = skips.iter().map(|&block| BlockId(block)).collect();
        let task = self.tasks[lane as usize];
        self.dva.on_task_done(ms(now), &TaskDone { task, outcome, ended, skips: &skips });
    }

    fn ok(&mut self, now: i64, lane: u32) -> String {
        self.end(now, lane, Outcome::Ok, &[], &[]);
        self.settle(now)
    }

    /// Settles; returns the decisions.
    fn settle(&mut self, now: i64) -> String {
        self.dva.settle(ms(now), &mut self.out);
        for action in self.out.actions() {
            let text = match *action {
                Action::Start { task, model, block, lane, .. } => {
                    self.tasks[lane.index()] = task;
                    let members: Vec<_> = self.dva.members(task).iter().map(|slot| slot.0).collect();
                    let model = if model.0 == 0 { String::new() } else { format!("model {} ", model.0) };
                    format!("{model}lane {} stage {} {members:?}", lane.0, block.0)
                }
                Action::Finish { request } => format!("done {}", request.0),
                Action::Reject { request, why } => format!("{why:?} {}", request.0),
                Action::Cancel { .. } => unreachable!("dva cancels nothing"),
            };
            self.seen.push(text);
        }
        self.out.clear();
        std::mem::take(&mut self.seen).join(", ")
    }
}

/// Four stages that take 1 ms whatever the batch: each row uses a quarter of the device.
fn flat() -> Model {
    chain(&[[1; 4]; 4])
}

#[test]
fn members_that_skip_continue_as_a_batch_of_their_own() {
    let mut driver = Driver::new(vec![flat()], 1, &[]);
    driver.arrive(0, 0..4, 0, 1_000);
    assert_eq!(driver.settle(0), "lane 0 stage 0 [0, 1, 2, 3]");
    driver.end(1, 0, Outcome::Ok, &[false, false, true, false], &[1, 3, 1, 3]);
    assert_eq!(driver.settle(1), "done 2, lane 0 stage 3 [1, 3]");
    assert_eq!(driver.ok(2, 0), "done 1, done 3, lane 0 stage 1 [0]");
    // The block after the last stage is the end.
    driver.end(3, 0, Outcome::Ok, &[], &[4]);
    assert_eq!(driver.settle(3), "done 0");
}

/// Figure 8: a batch of two is stretched by two more while its second stage runs, and split after
/// the third.
#[test]
fn figure_8_step_by_step() {
    let mut driver = Driver::new(vec![chain(&[[1; 4], [1; 4], [1; 4], [1, 1, 2, 2]])], 4, &[]);
    driver.arrive(0, 0..2, 0, 1_000);
    assert_eq!(driver.settle(0), "lane 0 stage 0 [0, 1]");
    assert_eq!(driver.ok(1, 0), "lane 0 stage 1 [0, 1]");
    driver.arrive(1, 2..4, 0, 1_000);
    assert_eq!(driver.settle(1), "lane 1 stage 0 [2, 3]", "newcomers begin while executor 2 works");
    driver.arrive(1, 4..5, 0, 1_000);
    assert_eq!(driver.ok(2, 0), "", "the batch waits at the border before stage 3");
    assert_eq!(driver.ok(2, 1), "lane 0 stage 1 [2, 3], lane 1 stage 0 [4]");
    assert_eq!(driver.ok(3, 0), "lane 0 stage 2 [0, 1, 2, 3]", "one batch from here on");
    assert_eq!(driver.ok(3, 1), "");
    assert_eq!(driver.ok(4, 0), "lane 0 stage 3 [0, 1], lane 1 stage 1 [4]", "split: the second part waits");
    assert_eq!(driver.ok(5, 0), "done 0, done 1, lane 0 stage 3 [2, 3]");
}

#[test]
fn newcomers_that_fail_or_leave_delay_no_batch() {
    for (outcome, ended, answer) in [(Outcome::Failed, &[][..], "Failed 1"), (Outcome::Ok, &[true], "done 1")] {
        let mut driver = Driver::new(vec![flat()], 2, &[]);
        driver.arrive(0, 0..1, 0, 1_000);
        assert_eq!(driver.settle(0), "lane 0 stage 0 [0]");
        assert_eq!(driver.ok(1, 0), "lane 0 stage 1 [0]");
        driver.arrive(2, 1..2, 0, 1_000);
        assert_eq!(driver.ok(2, 0), "lane 0 stage 0 [1]");
        driver.end(3, 0, outcome, ended, &[]);
        assert_eq!(driver.settle(3), format!("{answer}, lane 0 stage 2 [0]"));
        assert_eq!(driver.ok(4, 0), "lane 0 stage 3 [0]");
        assert_eq!(driver.ok(5, 0), "done 0");
    }
}

#[test]
fn newcomers_continue_without_a_batch_that_ends() {
    for (outcome, ended, answer) in [(Outcome::Failed, &[][..], "Failed 0"), (Outcome::Ok, &[true], "done 0")] {
        let mut driver = Driver::new(vec![flat()], 2, &[]);
        driver.arrive(0, 0..1, 0, 1_000);
        assert_eq!(driver.settle(0), "lane 0 stage 0 [0]");
        assert_eq!(driver.ok(1, 0), "lane 0 stage 1 [0]");
        driver.arrive(1, 1..2, 0, 1_000);
        assert_eq!(driver.settle(1), "lane 1 stage 0 [1]");
        driver.end(2, 0, outcome, ended, &[]);
        assert_eq!(driver.settle(2), answer);
        assert_eq!(driver.ok(2, 1), "lane 0 stage 1 [1]");
        for stage in 2..4 {
            assert_eq!(driver.ok(stage + 1, 0), format!("lane 0 stage {stage} [1]"));
        }
        assert_eq!(driver.ok(5, 0), "done 1");
    }
}

#[test]
fn only_the_latest_batch_is_joined_and_only_for_a_time() {
    let mut driver = Driver::new(vec![flat()], 4, &[("comp_wait_ms", "1")]);
    driver.arrive(0, 0..1, 0, 1_000);
    assert_eq!(driver.settle(0), "lane 0 stage 0 [0]");
    assert_eq!(driver.ok(1, 0), "lane 0 stage 1 [0]");
    driver.arrive(2, 1..2, 0, 1_000);
    assert_eq!(driver.ok(2, 0), "lane 0 stage 2 [0], lane 1 stage 0 [1]", "2 ms are too late to join");
    driver.arrive(2, 2..3, 0, 1_000);
    assert_eq!(driver.ok(3, 0), "lane 0 stage 3 [0]");
    assert_eq!(driver.ok(3, 1), "lane 1 stage 0 [2]", "the second batch waits, the first goes on");
    assert_eq!(driver.ok(4, 1), "lane 1 stage 1 [1, 2]");
    assert_eq!(driver.ok(4, 0), "done 0");
}

/// Newcomers join as long as the largest batch, 4 ms, would end within the SLO.
#[test]
fn the_time_to_join_ends_where_the_slo_could_be_missed() {
    for (slo_ms, expected) in [(5, "lane 0 stage 0 [1]"), (4, "lane 0 stage 1 [0], lane 1 stage 0 [1]")] {
        let mut driver = Driver::new(vec![Model { slo: Nanos::from_millis(slo_ms), ..flat() }], 2, &[]);
        driver.arrive(0, 0..1, 0, 1_000);
        assert_eq!(driver.settle(0), "lane 0 stage 0 [0]");
        driver.arrive(1, 1..2, 0, 1_000);
        assert_eq!(driver.ok(1, 0), expected, "{slo_ms}");
    }
}

#[test]
fn models_have_executors_of_their_own() {
    let mut driver = Driver::new(vec![flat(), flat()], 4, &[]);
    driver.arrive(0, 0..2, 0, 1_000);
    driver.arrive(0, 2..3, 1, 1_000);
    assert_eq!(driver.settle(0), "lane 0 stage 0 [0, 1], model 1 lane 1 stage 0 [2]");
}

#[test]
fn stages_that_prefer_other_profiled_sizes_make_a_model_diverse() {
    // Flat to 2 and to 4 rows, flat to 3 and to 4: the paper profiles 1, 2 and 4.
    for (last, splits) in [([1, 1, 2, 2], true), ([1, 1, 1, 2], false)] {
        let mut driver = Driver::new(vec![chain(&[[1; 4], last])], 2, &[]);
        driver.arrive(0, 0..4, 0, 1_000);
        driver.settle(0);
        let expected = if splits { "lane 0 stage 1 [0, 1]" } else { "lane 0 stage 1 [0, 1, 2, 3]" };
        assert_eq!(driver.ok(1, 0), expected);
    }
}

#[test]
fn requests_of_a_lost_device_start_over_once_all_tasks_have_ended() {
    let mut driver = Driver::new(vec![flat()], 2, &[]);
    driver.arrive(0, 0..1, 0, 1_000);
    driver.settle(0);
    driver.ok(1, 0);
    driver.arrive(1, 1..2, 0, 1_000);
    assert_eq!(driver.settle(1), "lane 1 stage 0 [1]");
    driver.end(2, 1, Outcome::DeviceLost, &[], &[]);
    assert_eq!(driver.settle(2), "");
    driver.end(2, 0, Outcome::DeviceLost, &[], &[]);
    assert_eq!(driver.settle(2), "lane 0 stage 0 [0, 1]");
    driver.dva.on_control(ms(3), Control::DeviceLeft(DeviceId(0)));
    driver.dva.on_control(ms(3), Control::ModelUnloaded(ModelId(0)));
    driver.end(3, 0, Outcome::Ok, &[true, false], &[]);
    assert_eq!(driver.settle(3), "done 0, Unloaded 1");
}

/// The window of policy I: the first stage takes as many ms as the oldest request is long.
#[test]
fn requests_that_differ_in_length_wait_for_the_first_stage_of_the_largest_batch() {
    let mut driver = Driver::new(vec![padded()], 2, &[]);
    driver.arrive_long(0, 0..1, 5, 1_000);
    assert_eq!((driver.settle(0), driver.dva.next_wakeup()), (String::new(), ms(5)));
    driver.arrive_long(2, 1..2, 1, 1_000);
    assert_eq!(driver.settle(2), "");
    assert_eq!(driver.settle(5), "lane 0 stage 0 [1]", "two groups, the short one first");
    assert_eq!(driver.ok(6, 0), "done 1, lane 0 stage 0 [0]");
}

/// Policy I bounds the requests in all stages by the largest batch.
#[test]
fn a_pipeline_by_length_holds_one_batch_of_requests() {
    for (diversity, expected) in [("input", "lane 0 stage 1 [0]"), ("load", "lane 0 stage 1 [0], lane 1 stage 0 [1]")] {
        let options = [("diversity", diversity), ("stretch", "false"), ("max_batch", "1"), ("window_ms", "0")];
        let mut driver = Driver::new(vec![flat()], 2, &options);
        driver.arrive(0, 0..2, 0, 1_000);
        assert_eq!(driver.settle(0), "lane 0 stage 0 [0]");
        assert_eq!(driver.ok(1, 0), expected);
    }
}

#[test]
fn a_window_holds_on_an_idle_device_only_if_it_was_asked_for() {
    let mut driver = Driver::new(vec![flat()], 1, &[]);
    driver.arrive(0, 0..1, 0, 1_000);
    assert_eq!(driver.settle(0), "lane 0 stage 0 [0]");
    let options = Options::from([("window_ms".to_owned(), OptionValue::Int(3))]);
    let limits = Limits { requests: 16, batch: 4, ..Limits::ONE };
    let dva = build("dva", &Setup { models: vec![flat()], devices: 1, limits }, &options).unwrap();
    let mut driver = Driver { dva, ..driver };
    driver.arrive(0, 0..1, 0, 1_000);
    assert_eq!((driver.settle(0), driver.dva.next_wakeup()), (String::new(), ms(3)));
    driver.arrive(1, 1..4, 0, 1_000);
    assert_eq!(driver.settle(1), "lane 0 stage 0 [0, 1, 2, 3]");
}

/// One stage that takes as many ms as a request is long, whatever the batch up to 4; at most 8
/// long.
fn padded() -> Model {
    let by_length =
        [1, 8].map(|length| (length, Profile::from_table(&[Nanos::from_millis(length.into()); 4]).unwrap()));
    let mut model = chain(&[[8; 4]]);
    model.blocks[0].lengths = Some(LengthProfiles::new(by_length.into()).unwrap());
    model
}

#[test]
fn a_new_profile_holds_for_requests_of_any_length() {
    // The wakeup is the time until which the second one is not hopeless.
    let mut driver = Driver::new(vec![padded()], 1, &[("drop", "hopeless"), ("window_ms", "0")]);
    driver.arrive_long(0, 0..1, 2, 1_000);
    driver.settle(0);
    driver.arrive_long(0, 1..2, 2, 20);
    assert_eq!((driver.settle(0), driver.dva.next_wakeup()), (String::new(), ms(18).next()));
    driver.ok(2, 0);
    driver.ok(4, 0);
    let profile = Profile::from_table(&[Nanos::from_millis(16); 4]).unwrap();
    driver.dva.on_control(ms(4), Control::ProfileReplaced { model: ModelId(0), block: BlockId(0), profile });
    driver.arrive_long(4, 0..1, 2, 1_000);
    driver.settle(4);
    driver.arrive_long(4, 1..2, 2, 20);
    assert_eq!((driver.settle(4), driver.dva.next_wakeup()), (String::new(), ms(20).next()));
}

/// One lane: two of length 1 run, and two of length 4 and 8, due at `slo_ms`, are a batch that
/// waits.
fn two_groups(drop: &str, slo_ms: i64) -> Driver {
    let mut driver = Driver::new(vec![padded()], 1, &[("groups", "2"), ("drop", drop)]);
    driver.arrive_long(0, 0..2, 1, 1_000);
    driver.arrive_long(0, 2..3, 4, slo_ms);
    driver.arrive_long(0, 3..4, 8, slo_ms);
    assert_eq!(driver.settle(0), "lane 0 stage 0 [0, 1]");
    driver
}

fn cancel(driver: &mut Driver, slot: u32) {
    driver.dva.on_control(ms(0), Control::Cancelled(RequestSlot(slot)));
}

#[test]
fn a_request_that_waits_in_a_batch_can_be_cancelled() {
    let mut driver = two_groups("never", 1_000);
    driver.arrive_long(0, 4..5, 2, 1_000);
    (0..3).for_each(|slot| cancel(&mut driver, slot));
    assert_eq!(driver.settle(0), "Cancelled 2");
    assert_eq!(driver.ok(1, 0), "done 0, done 1, lane 0 stage 0 [3]");
    assert_eq!(driver.ok(9, 0), "done 3, lane 0 stage 0 [4]");

    // A batch ends with its last member.
    let mut driver = two_groups("never", 1_000);
    (2..4).for_each(|slot| cancel(&mut driver, slot));
    assert_eq!(driver.settle(0), "Cancelled 2, Cancelled 3");
    driver.arrive_long(0, 4..5, 2, 1_000);
    assert_eq!((driver.ok(1, 0), driver.settle(2)), ("done 0, done 1".to_owned(), "lane 0 stage 0 [4]".to_owned()));
}

#[test]
fn a_request_that_waits_in_a_batch_is_dropped_as_in_the_queue() {
    // Due at 10, they take 4 and 8 ms; the batch before them ends at 11 only.
    let mut driver = two_groups("expired", 10);
    assert_eq!((driver.dva.next_wakeup(), driver.settle(9)), (ms(10), String::new()));
    assert_eq!(driver.settle(10), "Expired 2, Expired 3");
    assert_eq!(driver.ok(11, 0), "done 0, done 1");

    let mut driver = two_groups("hopeless", 10);
    assert_eq!((driver.dva.next_wakeup(), driver.settle(3)), (ms(2).next(), "Hopeless 3".to_owned()));
    assert_eq!(driver.dva.next_wakeup(), ms(6).next());
    assert_eq!(driver.ok(6, 0), "done 0, done 1, lane 0 stage 0 [2]");
    // Running requests are not dropped.
    assert_eq!((driver.dva.next_wakeup(), driver.settle(9)), (Time::NEVER, String::new()));
}

#[test]
fn a_request_that_waits_in_a_batch_is_rejected_if_the_model_is_unloaded() {
    let mut driver = two_groups("hopeless", 100);
    driver.arrive_long(0, 4..5, 2, 1_000);
    driver.dva.on_control(ms(0), Control::ModelUnloaded(ModelId(0)));
    assert_eq!(
        (driver.settle(0), driver.dva.next_wakeup()),
        ("Unloaded 2, Unloaded 3, Unloaded 4".into(), Time::NEVER)
    );
    assert_eq!(driver.ok(1, 0), "done 0, done 1");
}

#[test]
fn with_one_executor_a_stage_batches_follow_each_other() {
    let mut driver = Driver::new(vec![flat()], 4, &[("stretch", "false")]);
    driver.arrive(0, 0..1, 0, 1_000);
    assert_eq!(driver.settle(0), "lane 0 stage 0 [0]");
    driver.arrive(0, 1..2, 0, 1_000);
    // A lane would be free, but the executor of the first stage works.
    assert_eq!(driver.settle(0), "");
    assert_eq!(driver.ok(1, 0), "lane 0 stage 1 [0], lane 1 stage 0 [1]");
    driver.arrive(1, 2..3, 0, 1_000);
    // There are two pairs, and both are in use until the second stage has read from one.
    assert_eq!(driver.ok(2, 1), "");
    assert_eq!(driver.ok(3, 0), "lane 0 stage 2 [0], lane 1 stage 1 [1], lane 2 stage 0 [2]");
    assert_eq!(driver.ok(4, 0), "lane 0 stage 3 [0]");
    assert_eq!(driver.ok(5, 0), "done 0");
}

#[test]
fn one_pair_of_buffers_makes_stages_work_in_turn() {
    let mut driver = Driver::new(vec![flat()], 4, &[("buffers", "1")]);
    driver.arrive(0, 0..1, 0, 1_000);
    assert_eq!(driver.settle(0), "lane 0 stage 0 [0]");
    driver.arrive(0, 1..2, 0, 1_000);
    for stage in 1..4 {
        assert_eq!(driver.ok(stage, 0), format!("lane 0 stage {stage} [0]"));
    }
    assert_eq!(driver.ok(4, 0), "done 0, lane 0 stage 0 [1]");
}

#[test]
fn parts_of_a_split_run_one_after_the_other_though_executors_are_free() {
    let each = [1, 2, 3, 4];
    let mut driver = Driver::new(vec![chain(&[[1; 4], each, each])], 4, &[]);
    driver.arrive(0, 0..2, 0, 1_000);
    assert_eq!(driver.settle(0), "lane 0 stage 0 [0, 1]");
    assert_eq!(driver.ok(1, 0), "lane 0 stage 1 [0]");
    assert_eq!(driver.ok(2, 0), "lane 0 stage 2 [0]");
    assert_eq!(driver.ok(3, 0), "done 0, lane 0 stage 1 [1]");
    assert_eq!(driver.ok(4, 0), "lane 0 stage 2 [1]");
    assert_eq!(driver.ok(5, 0), "done 1");
}
