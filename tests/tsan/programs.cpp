#include <Kokkos_Core.hpp>
#include <cstdio>
#include <cstdlib>
#include <string_view>

// Small programs, right and wrong, that show whether ThreadSanitizer sees through Kokkos: see PagodaTsan.cmake.
// tsan_programs NAME runs one of them.

using Policy  = Kokkos::TeamPolicy<Kokkos::Schedule<Kokkos::Static>>;
using Member  = Policy::member_type;
using Scratch = Kokkos::View<double*, Member::scratch_memory_space, Kokkos::MemoryUnmanaged>;

// The plain split of this library in small: teams share scratch behind barriers, write partial sums, and the
// last team of each group to arrive adds them up. With barrier = false, the team does not wait for its scratch.
double team_sums(int team_size, bool barrier) {
  constexpr int groups = 10, pieces = 10, rows = 64;
  const Kokkos::View<double*> x("x", rows), partial("partial", groups * pieces), sum("sum", groups);
  const Kokkos::View<int*> arrived("arrived", groups);
  Kokkos::parallel_for("fill", rows, KOKKOS_LAMBDA(int i) { x(i) = i; });
  const Policy policy = Policy(groups * pieces, team_size).set_scratch_size(0, Kokkos::PerTeam(4096));
  Kokkos::parallel_for(
      "sums", policy, KOKKOS_LAMBDA(const Member& team) {
        // Neighbours in the league belong to different groups, so threads do meet in one.
        const int group = team.league_rank() % groups, piece = team.league_rank() / groups;
        const Scratch scratch(team.team_scratch(0), rows);
        Kokkos::parallel_for(Kokkos::TeamThreadRange(team, rows), [&](int i) { scratch(i) = x(i); });
        if (barrier) team.team_barrier();
        double mine = 0;
        Kokkos::parallel_reduce(
            Kokkos::TeamThreadRange(team, rows), [&](int i, double& s) { s += scratch(rows - 1 - i); }, mine);
        int last = 0;
        Kokkos::single(
            Kokkos::PerTeam(team),
            [&](int& is_last) {
              partial(group * pieces + piece) = mine;
              is_last                         = desul::atomic_fetch_add(&arrived(group), 1, desul::MemoryOrderSeqCst{},
                                                                        desul::MemoryScopeDevice{}) == pieces - 1;
            },
            last);
        if (last == 0) return;
        double total = 0;
        Kokkos::parallel_reduce(
            Kokkos::TeamThreadRange(team, pieces), [&](int i, double& s) { s += partial(group * pieces + i); }, total);
        Kokkos::single(Kokkos::PerTeam(team), [&] { sum(group) = total; });
      });
  double result = 0;
  Kokkos::parallel_reduce("total", groups, KOKKOS_LAMBDA(int i, double& s) { s += sum(i); }, result);
  return result;
}

// Every index adds to one place, without an atomic.
double shared_counter() {
  const Kokkos::View<double*> x("x", 1);
  Kokkos::parallel_for("race", 10000, KOKKOS_LAMBDA(int i) { x(0) += i; });
  return x(0);
}

// Teams of one thread write each other's results.
double neighbour_teams() {
  const Kokkos::View<double*> x("x", 100);
  Kokkos::parallel_for("race", Policy(100, 1), KOKKOS_LAMBDA(const Member& team) { x(team.league_rank() / 100) += 1; });
  return x(0);
}

int main(int argc, char** argv) {
  const Kokkos::ScopeGuard kokkos(argc, argv);
  const std::string_view name = argc > 1 ? argv[1] : "";
  const auto repeat           = [](auto program) {
    double result = 0;
    for (int i = 0; i < 20; ++i) result = program();
    std::printf("%g\n", result);
    return EXIT_SUCCESS;
  };
  if (name == "teams_of_one") return repeat([] { return team_sums(1, true); });
  if (name == "teams_of_two") return repeat([] { return team_sums(2, true); });
  if (name == "missing_barrier") return repeat([] { return team_sums(2, false); });
  if (name == "shared_counter") return repeat(shared_counter);
  if (name == "neighbour_teams") return repeat(neighbour_teams);
  std::fprintf(stderr, "tsan_programs: no program named '%s'\n", argc > 1 ? argv[1] : "");
  return EXIT_FAILURE;
}
