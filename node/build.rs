//! Sets the linker's options for a module of Node.js, which must stay in memory after a worker ends.

fn main() {
    napi_build::setup();
}
