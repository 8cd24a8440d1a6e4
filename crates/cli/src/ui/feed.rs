//! Where everything that a page is told comes together: from the coordinator, from the command that runs the job, or from a
//! folder. It remembers what pages need, keeps lines on disk if asked to, and asks the coordinator who is there.

use super::{
    folder::Keeper,
    history::History,
    record::{FORMAT, Job, Record, What},
};
use paceline_net::{
    Coordinator,
    coordinator::{MemberStatus, Observer},
};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    thread,
    time::{Duration, SystemTime},
};

/// How often the coordinator is asked who is there.
const GLANCE: Duration = Duration::from_millis(250);

/// See the file's first paragraph.
#[derive(Default)]
pub struct Feed {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    history: History,
    keeper: Option<Keeper>,
    /// Of the job that runs.
    coordinator: Weak<Coordinator>,
}

impl Feed {
    /// One that keeps what it is told, if there is a keeper.
    pub fn new(keeper: Option<Keeper>) -> Arc<Feed> {
        let state = State { keeper, ..State::default() };
        Arc::new(Feed { state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Lines are added whole: a panic elsewhere cannot leave half of one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something happened now.
    pub fn add(&self, what: What) {
        self.add_at(now(), what);
    }

    /// Something happened then.
    pub fn add_at(&self, t: u64, what: What) {
        self.keep(|history| history.add(t, what));
    }

    /// Change what is known, and keep the lines that come of it.
    fn keep(&self, change: impl FnOnce(&mut History) -> Vec<Arc<str>>) {
        let mut state = self.state();
        let added = change(&mut state.history);
        if let Some(keeper) = &mut state.keeper {
            added.iter().for_each(|line| keeper.keep(line));
        }
    }

    /// A line that was kept, again. Points were kept as well, and are not made anew.
    pub fn again(&self, record: Record) {
        self.state().history.again(record);
    }

    /// A job begins.
    pub fn begin(&self, job: Job) {
        self.add(What::Job(Job { format: FORMAT, ..job }));
    }

    /// For a job's coordinator.
    pub fn observer(self: &Arc<Feed>) -> Observer {
        let feed = self.clone();
        Observer::new(move |observation| {
            feed.keep(|history| history.observe(now(), observation));
        })
    }

    /// This is the job that runs, for as long as somebody else holds its coordinator. Who is there is looked at now and then.
    pub fn attend(self: &Arc<Feed>, coordinator: &Arc<Coordinator>) -> std::io::Result<()> {
        let job = Arc::downgrade(coordinator);
        self.state().coordinator = job.clone();
        let feed = Arc::downgrade(self);
        let look = move || {
            let mut before = Vec::new();
            while let (Some(feed), Some(coordinator)) = (feed.upgrade(), job.upgrade()) {
                let Ok(status) = coordinator.status() else { return };
                drop(coordinator);
                let members = status.members;
                if !members.iter().map(standing).eq(before.iter().map(standing)) {
                    feed.add(What::Members { members: members.clone() });
                    before = members;
                }
                drop(feed);
                thread::sleep(GLANCE);
            }
        };
        thread::Builder::new().name("page-members".to_string()).spawn(look).map(drop)
    }

    /// The coordinator of the job, if it runs.
    pub fn coordinator(&self) -> Option<Arc<Coordinator>> {
        self.state().coordinator.upgrade()
    }

    /// Read what is known.
    pub fn read<R>(&self, read: impl FnOnce(&History) -> R) -> R {
        read(&self.state().history)
    }
}

/// What of a member is worth a line when it changes.
fn standing(member: &MemberStatus) -> (Option<u64>, Option<u32>, u32, String) {
    let id = member.id.map(|id| id.0);
    (id, member.rank, member.process, format!("{:?} {}", member.standing, member.host))
}

/// Milliseconds since 1970.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}
