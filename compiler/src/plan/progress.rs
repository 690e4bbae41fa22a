//! Progress that a build reports to its caller.

use kivu::repository::Meter;

/// Observes build stages, and the downloads before them.
pub trait Progress: Meter {
    /// Begins a stage with `steps` steps.
    fn stage(&self, name: &str, steps: usize);
    /// Completes a step in the current stage.
    fn step(&self);
}

/// Observes nothing.
impl Progress for () {
    fn stage(&self, _: &str, _: usize) {}
    fn step(&self) {}
}
