#include "train/report/html_page.h"

#include "base/text.h"
#include "train/report/html_text.h"

namespace stepc::train {
namespace {

constexpr std::string_view kPageStyle = R"(
:root { color-scheme: light dark; --page: #fff; --ink: #1b1f24; --soft: #59626c; --rule: #e3e6ea; --box: #f6f7f9; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14171b; --ink: #e6e9ec; --soft: #a2abb5; --rule: #2c3239; --box: #1c2127; } }
body { background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 60rem;
  padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.6rem 0 .7rem; }
p { margin: 0 0 .4rem; color: var(--soft); }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.4rem, 1fr)); gap: .8rem; margin: 1.4rem 0 2rem; }
.fact { background: var(--box); border: 1px solid var(--rule); border-radius: 8px; padding: .6rem .9rem; }
.fact b { display: block; font-size: 1.35rem; font-weight: 600; line-height: 1.3; }
.fact span { color: var(--soft); font-size: .88rem; }
.charts { display: grid; gap: 2rem; }
.picture { margin: 1.4rem 0; } .picture svg { max-width: 100%; height: auto; border-radius: 8px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .32rem .7rem; border-bottom: 1px solid var(--rule); vertical-align: top; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
th { font-weight: 600; color: var(--soft); } td.why { text-align: left; color: var(--soft); font-size: .9rem; }
.bar { display: flex; height: 1.5rem; border-radius: 5px; overflow: hidden; margin: .4rem 0 .9rem; background: var(--rule); }
.bar i { display: block; } .dot { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .5em; }
.p0 { background: #1f6fb2; } .p1 { background: #58a4d6; } .p2 { background: #d98a3d; } .p3 { background: #5b9e5f; }
.p4 { background: #a06bb5; } .p5 { background: #8a939c; } .p6 { background: #c9b458; } .p7 { background: #b9503f; }
pre { background: var(--box); border: 1px solid var(--rule); border-radius: 8px; padding: 1rem; overflow: auto;
  font: 14px/1.45 ui-monospace, monospace; }
)";

}  // namespace

std::string page_head(std::string_view title, std::string_view style) {
  std::string html = "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n";
  html += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
  return html +
         str("<title>{} - stepc</title>\n<style>{}{}</style></head>\n<body>\n", html_text(title), kPageStyle, style);
}

}  // namespace stepc::train
