//! How long a choice takes, with all that it is made from.
//!
//!     cargo bench -p estream-planner --bench selection

mod setting;

use std::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use estream_planner::{Problem, plan, survey};
use estream_schemas::plan::Schedule;

use self::setting::{DEVICE, MODELS, question};

fn selection(criterion: &mut Criterion) {
    let sizes = [&MODELS[0], &MODELS[3]];
    for (schedule, samples) in [(Schedule::Early, 100), (Schedule::Ahead, 10)] {
        for model in sizes {
            let name = format!("{}/{}", schedule.name(), model.name);
            let mut group = criterion.benchmark_group(name);
            group.sample_size(samples);
            for tokens in [16, 256, 1024, 2048, 4096] {
                let question = question(model, &DEVICE, tokens, (schedule, 0));
                group.bench_function(tokens.to_string(), |bencher| {
                    let choose = |question| {
                        let problem = Problem::new(black_box(question)).expect("a problem");
                        plan(&problem).expect("a choice")
                    };
                    bencher.iter_batched(|| question.clone(), choose, BatchSize::LargeInput);
                });
            }
            group.finish();
        }
    }
    let mut group = criterion.benchmark_group("frontier of early");
    for model in sizes {
        let question = question(model, &DEVICE, 1024, (Schedule::Early, 0));
        let problem = Problem::new(question).expect("a problem");
        group.bench_function(model.name, |bencher| {
            bencher.iter(|| survey(black_box(&problem)));
        });
    }
    group.finish();
}

criterion_group!(benches, selection);
criterion_main!(benches);
