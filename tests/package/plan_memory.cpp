// Uses one torch-free folder of an installed stepc.
#include <cstdio>

#include <stepc/memory/layout.h>

int main() {
  const stepc::LayoutProblem problem{{{10, 0, 4}, {10, 2, 6}, {20, 1, 5}, {30, 5, 7}}, 1};
  const stepc::Layout layout = stepc::plan_layout(problem);
  stepc::verify_layout(problem, layout);
  std::printf("planned %llu bytes\n", static_cast<unsigned long long>(layout.bytes));
  return layout.bytes == stepc::lower_bound(problem) ? 0 : 1;
}
