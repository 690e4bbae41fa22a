//! Reports how far a build has come.

/// Receives the stages of a build.
pub trait Progress: Sync {
    /// A stage of `steps` steps begins.
    fn stage(&self, name: &str, steps: usize);
    /// A step of the stage is done.
    fn step(&self);
}
