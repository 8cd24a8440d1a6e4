//! Traces of PyTorch's profiler and folders of them, as users have them: generated here, small, whole and broken.

mod folders;
mod kineto;
mod made;
