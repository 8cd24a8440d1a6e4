//! The page that shows a job: what `paceline run --ui`, `paceline demo --ui` and `paceline ui` have in common. What happens comes
//! in through a [`Feed`]; this file opens the page and says where it is.

mod feed;
mod folder;
mod grouping;
mod history;
mod http;
mod prometheus;
pub mod record;
mod site;
mod token;
mod trace;

pub use feed::Feed;
pub use site::Hands;

use crate::{bench::interrupt::Interrupt, exit::UsageError, settings::parse_address};
use anyhow::Result;
use clap::Args;
use folder::Keeper;
use http::Server;
use record::{Record, What};
use site::Site;
use std::{
    io,
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};
use token::Token;

/// A page that looked this many milliseconds ago is taken to be open.
const LOOKED_LATELY: u64 = 2000;

/// How long the end of a job waits for pages that are open to hear of it.
const LAST_WORDS: Duration = Duration::from_millis(900);

/// How often a run that is shown again goes on, and a wait looks whether the user wants to leave.
const TICK: Duration = Duration::from_millis(50);

/// How a running job is shown.
#[derive(Clone, Debug, Default, Args)]
pub struct UiOptions {
    /// Show the job in a browser while it runs. The link that is printed holds a token, and leads to this machine only, unless
    /// another address is given.
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "127.0.0.1:0",
        value_parser = parse_address
    )]
    pub ui: Option<SocketAddr>,

    /// Keep what the page shows in this folder (made if it is not there), for `paceline ui`.
    #[arg(long, value_name = "FOLDER")]
    pub ui_dir: Option<PathBuf>,
}

/// Show a run that is over in a browser.
///
/// Reads what `paceline run --ui-dir FOLDER` or `paceline demo --ui-dir FOLDER` kept, and serves the page on this machine until
/// Ctrl-C.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  paceline run -n 4 --ui --ui-dir resnet -- python train.py
  paceline ui resnet
  paceline ui resnet --play              as it happened, at the same pace

Environment:
  PACELINE_UI_TOKEN   the token of the link; made afresh if it is not set

Exit codes:
  0    it was ended by Ctrl-C
  2    the command line is wrong, the folder holds no run, or the port is in use")]
pub struct UiArgs {
    /// What `--ui-dir` named.
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,

    /// Where to listen; port 0 lets the system choose.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0", value_parser = parse_address)]
    listen: SocketAddr,

    /// Show it as it happened, at the pace at which it did.
    #[arg(long)]
    play: bool,
}

/// A page that is open. Dropping it closes it.
pub struct Page {
    /// Where everything comes in.
    pub feed: Arc<Feed>,
    /// For people; none if what happens is only kept.
    pub link: Option<String>,
    /// When somebody last looked, in milliseconds since 1970.
    looked: Arc<AtomicU64>,
    _server: Option<Server>,
}

impl Page {
    /// As the options say; none if they ask for none.
    pub fn open(options: &UiOptions, hands: Hands) -> Result<Option<Page>> {
        if options.ui.is_none() && options.ui_dir.is_none() {
            return Ok(None);
        }
        // The port first: a folder that was made for nothing would be in the way the next time.
        let listener = options.ui.map(|address| listen(address, "--ui")).transpose()?;
        let keeper = options.ui_dir.as_deref().map(Keeper::make).transpose()?;
        Page::on(listener, Feed::new(keeper), hands).map(Some)
    }

    fn on(listener: Option<TcpListener>, feed: Arc<Feed>, hands: Hands) -> Result<Page> {
        let looked = Arc::<AtomicU64>::default();
        let Some(listener) = listener else {
            return Ok(Page { feed, link: None, looked, _server: None });
        };
        let token = Token::of_environment()?;
        let text = token.text().to_string();
        let site = Site { token, feed: feed.clone(), hands };
        let seen = looked.clone();
        let server = Server::start(
            listener,
            Arc::new(move |request| {
                let answer = site.answer(request);
                if request.path == "/feed" && answer.status == 200 {
                    seen.store(feed::now(), Ordering::Relaxed);
                }
                answer
            }),
        )?;
        let link = Some(format!("http://{}/?token={text}", server.address()));
        Ok(Page { feed, link, looked, _server: Some(server) })
    }

    /// The job is over: pages that are open hear of it before they are closed.
    pub fn finish(self, text: &str) {
        self.feed.add(What::End { text: text.to_string() });
        if self.looked.load(Ordering::Relaxed) + LOOKED_LATELY > feed::now() {
            thread::sleep(LAST_WORDS);
        }
    }
}

fn listen(address: SocketAddr, option: &str) -> Result<TcpListener> {
    TcpListener::bind(address).map_err(|error| {
        let remedy = match error.kind() {
            io::ErrorKind::AddrInUse => {
                "it is in use: give another port, or 0 for one that is free"
            }
            io::ErrorKind::AddrNotAvailable => "this machine has no such address",
            io::ErrorKind::PermissionDenied => "ports below 1024 need privileges: give another",
            _ => "no page can be served there",
        };
        UsageError::new(format!("{option}: cannot listen on {address}: {remedy} ({error})")).into()
    })
}

/// Run the command.
pub fn run(arguments: &UiArgs) -> Result<ExitCode> {
    let records = folder::read(&arguments.folder)?;
    let interrupt = Interrupt::listen_calmly()?;
    let listener = listen(arguments.listen, "--listen")?;
    let feed = Feed::new(None);
    let page = Page::on(Some(listener), feed.clone(), Hands::Off)?;
    println!("page at {}", page.link.as_deref().unwrap_or_default());
    println!("Ctrl-C ends it");
    let (whole, last) = (is_whole(&records), records.last().map_or(0, |record| record.t));
    let mut records = records.into_iter().peekable();
    let (first, begin) = (records.peek().map_or(0, |record| record.t), feed::now());
    // Ctrl-C is how it ends.
    while interrupt.check().is_ok() {
        let until = first + (feed::now() - begin);
        while let Some(record) = records.next_if(|record| !arguments.play || record.t <= until) {
            // As if it happened now: pages compare with their clocks.
            let t = if arguments.play { record.t - first + begin } else { record.t };
            feed.again(Record { t, ..moved(record, arguments.play.then_some((first, begin))) });
        }
        if records.peek().is_none() && !whole && !feed.read(|history| history.now.ended.is_some()) {
            let t = if arguments.play { last - first + begin } else { last };
            feed.add_at(t, What::End { text: "what was kept ends here".to_string() });
        }
        thread::sleep(TICK);
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether the run came to its end while it was kept.
fn is_whole(records: &[Record]) -> bool {
    matches!(records.last(), Some(Record { what: What::End { .. }, .. }))
}

/// What a worker saw, as if it had been seen later.
fn moved(mut record: Record, by: Option<(u64, u64)>) -> Record {
    if let (What::Seen { sighting, .. }, Some((first, begin))) = (&mut record.what, by) {
        sighting.at = (sighting.at + 1000 * begin).saturating_sub(1000 * first);
    }
    record
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_in_use_is_named_with_the_remedy() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let error = listen(address, "--ui").unwrap_err();
        assert!(error.is::<UsageError>());
        let text = error.to_string();
        assert!(text.contains(&address.to_string()) && text.contains("another port"), "{text}");
    }

    #[test]
    fn nothing_is_opened_unless_it_is_asked_for() {
        assert!(Page::open(&UiOptions::default(), Hands::On).unwrap().is_none());
        let folder = tempfile::tempdir().unwrap();
        let ui_dir = Some(folder.path().join("a"));
        let kept = Page::open(&UiOptions { ui: None, ui_dir }, Hands::On).unwrap().unwrap();
        assert!(kept.link.is_none());
        kept.feed.begin(record::Job::default());
        kept.finish("it ended");
        assert_eq!(folder::read(&folder.path().join("a")).unwrap().len(), 2);
    }
}
