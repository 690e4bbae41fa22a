//! Commands that set this machine and a project up.

pub mod completions;
pub mod doctor;
pub mod init;
