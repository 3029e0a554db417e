//! Makes a failing script small: leaves out steps, then blocks and names, while it still fails.

use kvasir_proto::types::KvEvent;
use kvasir_tests::script::{Action, Script};

/// Runs after which the smallest script so far is good enough.
const RUNS_MAX: usize = 3_000;

struct Shrinker<F> {
    fails: F,
    runs: usize,
}

impl<F: Fn(&Script) -> bool> Shrinker<F> {
    fn still_fails(&mut self, script: &Script) -> bool {
        self.runs += 1;
        self.runs <= RUNS_MAX && (self.fails)(script)
    }

    fn leave_out_steps(&mut self, script: &mut Script) {
        let mut chunk = script.steps.len() / 2;
        while chunk > 0 {
            let mut start = script.steps.len().saturating_sub(chunk);
            loop {
                let mut candidate = script.clone();
                let end = candidate.steps.len().min(start + chunk);
                candidate.steps.drain(start.min(end)..end);
                if self.still_fails(&candidate) {
                    *script = candidate;
                }
                if start == 0 {
                    break;
                }
                start = start.saturating_sub(chunk);
            }
            chunk /= 2;
        }
    }

    fn leave_out_elements(&mut self, script: &mut Script) {
        for step in 0..script.steps.len() {
            let mut chunk = elements(&script.steps[step].action) / 2;
            while chunk > 0 {
                self.leave_out_chunks(script, step, chunk);
                chunk /= 2;
            }
        }
    }

    fn leave_out_chunks(&mut self, script: &mut Script, step: usize, chunk: usize) {
        let mut start = 0;
        while start + chunk <= elements(&script.steps[step].action) {
            let mut candidate = script.clone();
            leave_out(&mut candidate.steps[step].action, start, chunk);
            if self.still_fails(&candidate) {
                *script = candidate;
            } else {
                start += chunk;
            }
        }
    }
}

/// Blocks or names of an event; an event keeps at least one.
fn elements(action: &Action) -> usize {
    match action {
        Action::Event { event, .. } => event.operations(),
        _ => 0,
    }
}

fn leave_out(action: &mut Action, start: usize, count: usize) {
    let Action::Event { event, .. } = action else {
        return;
    };
    let range = start..start + count;
    match event {
        KvEvent::Stored { blocks, .. } => drop(blocks.drain(range)),
        KvEvent::StoredNames { names, .. }
        | KvEvent::Removed { names, .. }
        | KvEvent::Gone { names, .. } => {
            drop(names.drain(range));
        }
        KvEvent::Cleared | KvEvent::ClearedTier(_) => {}
    }
}

/// The smallest script found that still fails; `script` itself must fail.
pub fn shrink(
    script: &Script,
    failed_step: Option<usize>,
    fails: impl Fn(&Script) -> bool,
) -> Script {
    let mut shrinker = Shrinker { fails, runs: 0 };
    let mut smallest = script.clone();
    if let Some(step) = failed_step {
        smallest.steps.truncate(step + 1);
    }
    loop {
        let before = (smallest.steps.len(), shrinker.runs);
        shrinker.leave_out_steps(&mut smallest);
        shrinker.leave_out_elements(&mut smallest);
        if smallest.steps.len() == before.0 || shrinker.runs > RUNS_MAX {
            return smallest;
        }
    }
}
